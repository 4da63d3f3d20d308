"""Processes that start together share the work of rewriting assertions, which each would do for all modules by itself."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]


class _BegunError(Exception):
    """A module has begun to run: it is rewritten by then, and kept in the directory of compiled modules."""


def rewrite_share() -> None:
    """In a worker of pytest-xdist: rewrite its share of the test modules where that was not done, without running them.

    A worker that comes to the share of another while it collects finds it done. Nothing is done in a process that is alone,
    or where compiled modules are not kept (PYTHONDONTWRITEBYTECODE).
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    if workers > 1 and not sys.dont_write_bytecode:
        first = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))[first::workers]:
            _rewrite(".".join(path.relative_to(ROOT).with_suffix("").parts))


def _rewrite(name: str) -> None:
    """Have pytest's loader rewrite and keep a module, whose first statement is an import: that one ends it before it has run."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["__builtins__"] = {"__import__": _end}
    with contextlib.suppress(_BegunError):
        spec.loader.exec_module(module)


def _end(*_: object) -> NoReturn:
    raise _BegunError
