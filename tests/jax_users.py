"""Which test modules load JAX, going by what they import: only those can tell one version of it from another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}


def loads_jax(module: Path) -> bool:
    """Whether importing a file of this project leads to JAX, directly or through other files of it."""
    seen: set[Path] = set()
    left = [module]
    while left:
        file = left.pop()
        if file not in seen:
            seen.add(file)
            names = imported_by(file)
            if any(name.partition(".")[0] in JAX for name in names):
                return True
            left += [found for name in names for found in files_of(name)]
    return False


@cache
def imported_by(file: Path) -> frozenset[str]:
    """The dotted names that a file imports when it is imported itself: what functions import later does not count."""
    names: set[str] = set()
    for node in _imports(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
            continue
        parts = file.relative_to(ROOT).parts[: -node.level] if node.level else ()
        source = ".".join((*parts, *([node.module] if node.module else [])))
        names.update((source, *(f"{source}.{alias.name}" for alias in node.names)))
    return frozenset(names)


@cache
def files_of(name: str) -> tuple[Path, ...]:
    """The files of this project that run when a dotted name is imported, the packages around it included."""
    parts = name.split(".")
    places = [ROOT.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
    files = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))]
    return tuple(file for file in files if file.is_file())


def _imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from _imports(child)
