"""No family imports a family but the one that it subclasses: what several share is in `models/shared`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import jaxengine.device.models.families as families

ROOT = Path(families.__file__).parent
PACKAGE = families.__name__ + "."


def strangers(source: str, family: str) -> list[str]:
    """The modules of other families that a module of `family` imports, and none of whose classes it subclasses."""
    tree = ast.parse(source)
    names: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            names.setdefault(str(node.module), set()).update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            names |= {alias.name: set() for alias in node.names if alias.name.startswith(PACKAGE)}
        elif isinstance(node, ast.ImportFrom) and (node.level or node.module == PACKAGE.rstrip(".")):
            names["an import that does not say whose it is"] = set()
    bases = {
        base.id
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name.endswith(("CausalLM", "Generation", "HeadModel"))
        for base in node.bases
        if isinstance(base, ast.Name)
    }
    own = PACKAGE + family
    return [name for name, of in names.items() if name != own and not name.startswith(own + ".") and not of & bases]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_family_imports_none_but_its_base(path: Path) -> None:
    assert strangers(path.read_text(), path.relative_to(ROOT).parts[0].removesuffix(".py")) == []


def test_an_import_of_another_family_is_found() -> None:
    taken = f"from {PACKAGE}mixtral import MixtralForCausalLM, check_chosen\n"
    assert strangers(taken, "olmoe") == [f"{PACKAGE}mixtral"]
    assert strangers(taken + "class OlmoeForCausalLM(MixtralForCausalLM): ...\n", "olmoe") == []
    assert strangers(f"from {PACKAGE}gemma4.layer import Gemma4Layer\n", "gemma4") == []
    assert strangers(f"import {PACKAGE}gemma4.layer\n", "gemma3") == [f"{PACKAGE}gemma4.layer"]
    assert strangers("from . import llama\n", "gemma3") != []
