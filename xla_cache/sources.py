"""The source that programs are traced from: some modules and what they import, read from their text."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

_IMPORT = re.compile(
    r"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)*|^[ \t]*from ([\w.]+) import (\([^)]*\)|.*)|^[ \t]*import ([\w.]+)", re.M
)
"""An import, or a block of those that serve annotations alone. `ast` is forty times as slow, and every start reads the source."""

_STARTED = time.time()


@cache
def source_digests(entries: tuple[str, ...], packages: tuple[str, ...]) -> Mapping[str, str]:
    """`source.<package>`: digest of the contents (never the places) of those of its modules that `closure` finds."""
    folders: dict[str, list[tuple[str, Path]]] = {}
    for module, path in sorted(closure(entries, packages).items()):
        folder = module if path.name == "__init__.py" else module.rpartition(".")[0]
        folders.setdefault(folder, []).append((module, path))
    return {f"source.{folder}": _digest(files) for folder, files in folders.items()}


def closure(entries: Iterable[str], packages: Iterable[str]) -> dict[str, Path]:
    """The file of each module of `packages` that the modules `entries` are or import; a package is all of its modules.

    What a package only hands on is looked for where it is defined, and the rest of what the package imports is left out.
    """
    sources = _Sources(packages)
    found: dict[str, Path] = {}
    ahead = [module for entry in entries for module in sources.modules(entry)]
    while ahead:
        module = ahead.pop()
        if module not in found and (path := sources.file(module)) is not None:
            found[module] = path
            ahead += [
                sources.definer(source, name) for source, names in sources.imports(module) for name in names.values()
            ]
    return found


def imports(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The modules that a source imports, wherever in it, each with the names it takes from there: what they are here, and there.

    `import x` takes the name "" from `x`. Imports of `if TYPE_CHECKING` are left out.
    """
    for match in _IMPORT.finditer(text):
        module, taken, whole = match.groups()
        if whole:
            yield whole, {"": ""}
        elif module:
            words = [item.split() for item in re.sub(r"#.*", "", taken).strip("() \n").split(",")]
            yield module, {item[-1]: item[0] for item in words if item}


class _Sources:
    def __init__(self, packages: Iterable[str]) -> None:
        self._roots = {package: _folder(package) for package in packages}
        self.file = cache(self._file)
        self.imports = cache(self._imports)

    def modules(self, entry: str) -> list[str]:
        """`entry`, and where it is a package every module in it."""
        file = self.file(entry)
        if file is None:
            raise ModuleNotFoundError(f"no module {entry!r} to take the digest of")
        if file.name != "__init__.py":
            return [entry]
        folder = file.parent
        names = [path.relative_to(folder).with_suffix("").parts for path in folder.rglob("*.py")]
        return [".".join((entry, *(part for part in parts if part != "__init__"))) for parts in names]

    def definer(self, module: str, name: str) -> str:
        """The module that defines `name` of `module`; itself a module perhaps."""
        if name and self.file(f"{module}.{name}") is not None:
            return f"{module}.{name}"
        file = self.file(module)
        if file is not None and file.name == "__init__.py":
            for source, names in self.imports(module):
                if name in names:
                    return self.definer(source, names[name])
        return module

    def _file(self, module: str) -> Path | None:
        first, *rest = module.split(".")
        if first not in self._roots:
            return None
        place = self._roots[first].joinpath(*rest)
        return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)

    def _imports(self, module: str) -> list[tuple[str, dict[str, str]]]:
        file = self.file(module)
        return [] if file is None else list(imports(file.read_text()))


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no package {package!r} to take the digest of")
    return Path(spec.origin).parent


def _digest(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for module, path in files:
        contents = path.read_bytes()
        if path.stat().st_mtime > _STARTED:
            # what this process imported may not be what is on disk: what it compiles must not pass for the new source
            digest.update(f"changed while process {os.getpid()} ran, at {_STARTED}".encode())
        digest.update(f"{module}\0{len(contents)}\0".encode() + contents)
    return digest.hexdigest()[:32]
