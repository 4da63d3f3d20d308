"""No module imports itself by way of others, not even where a function imports late: what depends on what has an order."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("buckets", "jaxengine", "pallas_kernels", "xla_cache")


def modules_of(root: Path, packages: tuple[str, ...]) -> dict[str, Path]:
    """The files of the packages by the names of their modules."""
    files = [file for package in packages for file in (root / package).rglob("*.py")]
    parts = [(file.relative_to(root).with_suffix("").parts, file) for file in files]
    return {".".join(names[:-1] if names[-1] == "__init__" else names): file for names, file in parts}


def imported(node: ast.AST) -> Iterator[str]:
    """The dotted names that code imports when it runs, wherever in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute here"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from imported(child)


def graph_of(root: Path, packages: tuple[str, ...]) -> dict[str, set[str]]:
    """Which modules each module imports."""
    files = modules_of(root, packages)
    graph: dict[str, set[str]] = {}
    for module, file in files.items():
        names = set(imported(ast.parse(file.read_text())))
        found = {name if name in files else name.rpartition(".")[0] for name in names}
        graph[module] = found & files.keys() - {module}
    return graph


@pytest.mark.slow
def test_imports_have_an_order() -> None:
    graph = graph_of(ROOT, PACKAGES)
    assert "jaxengine.startup.prepare" in graph["jaxengine.startup.part"]
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_a_circle_is_seen(tmp_path: Path) -> None:
    package = tmp_path / "circle"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("from circle import two\n")
    (package / "two.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import circle.one\n")
    graphlib.TopologicalSorter(graph_of(tmp_path, ("circle",))).prepare()
    (package / "two.py").write_text("def late():\n    import circle.one\n")
    with pytest.raises(graphlib.CycleError, match=r"circle\.one"):
        graphlib.TopologicalSorter(graph_of(tmp_path, ("circle",))).prepare()
