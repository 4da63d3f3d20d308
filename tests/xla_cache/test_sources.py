"""The digests of source follow what traced modules import, and nothing else."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from xla_cache import source_digests
from xla_cache.sources import closure, imports

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("buckets", "jaxengine", "pallas_kernels", "xla_cache")
PROGRAMS = """
from typing import TYPE_CHECKING
import jax
from package import handed_on, written_here  # a comment, with a name
from package.constants import (
    LIMIT,  # (what it is for)
    OTHER as RENAMED,
)
if TYPE_CHECKING:
    from package.annotation import A

    from package.annotation import B
from package import module

def lazily():
    from package.late import late
"""
FILES = {
    "__init__.py": "from package.origin import hand as handed_on\nfrom package.unused import unused\nwritten_here = 1\n",
    "programs.py": PROGRAMS,
    "origin.py": "import package.deep.inner",
    "deep/__init__.py": "",
    "deep/inner.py": "",
    **{f"{name}.py": "" for name in ("constants", "annotation", "module", "late", "unused")},
}

Make = Callable[..., Mapping[str, str]]


@pytest.fixture
def digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Writes `FILES` with changes, as a package that this process has not imported, and gives the digests of its programs."""

    def make(place: str, changes: Mapping[str, str] | None = None, *, changed: float = 1.0) -> Mapping[str, str]:
        for name, text in {**FILES, **(changes or {})}.items():
            path = tmp_path / place / "package" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            os.utime(path, (changed, changed))
        monkeypatch.syspath_prepend(str(tmp_path / place))
        source_digests.cache_clear()
        return source_digests(("package.programs",), ("package",))

    return make


def test_what_is_imported_is_followed(digests: Make) -> None:
    digests("a")
    names = ("programs", "origin", "deep.inner", "constants", "module", "late", "unused")
    found = {f"package.{name}" for name in names}
    assert set(closure(("package.programs",), ("package",))) == {"package", *found}, "`written_here` brings its package"
    digests("b", {"programs.py": "from package import handed_on"})
    found = {f"package.{name}" for name in ("programs", "origin", "deep.inner")}
    assert set(closure(("package.programs",), ("package",))) == found, "what is only handed on does not"
    assert set(closure(("package.deep",), ("package",))) == {"package.deep", "package.deep.inner"}
    with pytest.raises(ModuleNotFoundError, match="no module"):
        closure(("package.none",), ("package",))


def test_contents_count_and_places_do_not(digests: Make) -> None:
    first = digests("a")
    assert first == digests("b") != digests("c", {"late.py": "x = 1"})
    assert first == digests("d", {"annotation.py": "x = 1"})


def test_source_that_changed_while_the_process_runs_is_not_what_it_imported(digests: Make) -> None:
    assert digests("a", changed=time.time() + 1) != digests("b")


@pytest.mark.slow
def test_the_quick_reading_sees_what_python_sees() -> None:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(paths) > 200
    for path in paths:
        text = path.read_text()
        quick = {(module, name) for module, names in imports(text) for name in names.values()}
        assert quick == set(_imports(ast.parse(text))), path


def _imports(tree: ast.AST) -> list[tuple[str, str]]:
    if isinstance(tree, ast.If) and isinstance(tree.test, ast.Name) and tree.test.id == "TYPE_CHECKING":
        return []
    if isinstance(tree, ast.Import):
        return [(alias.name, "") for alias in tree.names]
    if isinstance(tree, ast.ImportFrom):
        return [("." * tree.level + (tree.module or ""), alias.name) for alias in tree.names]
    return [found for child in ast.iter_child_nodes(tree) for found in _imports(child)]
