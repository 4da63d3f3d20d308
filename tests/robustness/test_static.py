"""Attacks that the code must not even offer a place for (groups A1, A10, B8): no pickle, no way out, no path from a request."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("jaxengine", "buckets", "xla_cache", "pallas_kernels")
FORBIDDEN = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "jsonpickle",
    "torch",
}
PICKLERS = {
    "xla_cache/payload.py",
    "jaxengine/device/weights/pickled_file.py",
    "jaxengine/contract/wire.py",
    "jaxengine/contract/step_updates.py",
    *(f"jaxengine/startup/group/{name}.py" for name in ("following", "leading", "leading_runner", "ray_hosts")),
    "jaxengine/tools/plan_hosts.py",
}
"""The first reads JAX's own form of an executable, admitting a closed list of classes, from files whose digests were checked; the
second torch's checkpoints, admitting the instructions of plain data and two functions, both replaced by its own; the third what a
front and the engine that it started tell each other over a pair of sockets that nobody else can reach, and the fourth a part of
that. Of a group of hosts the others read what the first one sends, whose address they were given and which proved that it knows
their key (`link.py`); a child of Ray's reads what its parent gave it; the rest of these only write."""
OUTWARD = {"requests", "urllib", "urllib3", "http", "httpx", "aiohttp", "ftplib", "smtplib", "xmlrpc", "telnetlib"}


def sources(*packages: str, naming: Iterable[str] = ("",)) -> Iterator[tuple[Path, str]]:
    """The files that have one of these texts, and what they say: only those need parsing."""
    for package in packages or PACKAGES:
        paths = sorted((ROOT / package).rglob("*.py"))
        assert paths, f"there is no {package}"
        for path in paths:
            text = path.read_text()
            if any(name in text for name in naming):
                yield path, text


def imported(text: str) -> Iterator[str]:
    """The first names of all modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


def test_nothing_unpickles() -> None:
    found = {str(path.relative_to(ROOT)) for path, text in sources(naming=FORBIDDEN) if FORBIDDEN & set(imported(text))}
    assert found <= PICKLERS, f"these import {FORBIDDEN}: {found - PICKLERS}"


def test_nothing_evaluates_text() -> None:
    calls = ("eval", "exec", "compile", "__import__")
    for path, text in sources(naming=[f"{call}(" for call in calls]):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in calls, f"{path}:{node.lineno} calls {node.func.id}()"


@pytest.mark.parametrize("package", ["server", "text", "front", "grammar", "host"])
def test_what_sees_requests_makes_none(package: str) -> None:
    for path, text in sources(f"jaxengine/{package}", naming=OUTWARD):
        # http.HTTPStatus is a table of names, no client
        names = set(imported(text)) - ({"http"} if "HTTPStatus" in text else set())
        assert not names & OUTWARD, f"{path} imports {names & OUTWARD}"


def test_routes_and_protocols_open_no_file() -> None:
    for path, text in sources("jaxengine/server"):
        if path.name in ("route.py", "protocol.py"):
            for node in ast.walk(ast.parse(text)):
                called = node.func if isinstance(node, ast.Call) else None
                opened = (isinstance(called, ast.Name) and called.id == "open") or (
                    isinstance(called, ast.Attribute) and called.attr in ("open", "read_text", "read_bytes")
                )
                assert not opened, f"{path}:{node.lineno} opens a file"  # type: ignore[attr-defined]
