"""A backend is chosen by name, by platform, or refused with the reason."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from pallas_kernels.dispatch import KernelUnsupported, Op


@pytest.fixture
def op() -> Iterator[Op]:
    """An op of three backends: one for everything, one for even numbers, one that cannot even be imported."""

    def backend(name: str, *, even_only: bool) -> str:
        module: Any = types.ModuleType(f"tests_pallas_kernels_{name}")
        module.supports = lambda number: "it takes even numbers only" if even_only and number % 2 else None
        module.half = lambda number: (name, number / 2)
        sys.modules[module.__name__] = module
        return str(module.__name__)

    names = {"slow": backend("slow", even_only=False), "fast": backend("fast", even_only=True)}
    yield Op("half", {**names, "broken": "no_such_module"}, preferred={"tpu": ("fast",)}, portable="slow")
    for name in names.values():
        del sys.modules[name]


def test_a_named_backend_runs(op: Op) -> None:
    assert op.run("fast", None, 4) == ("fast", 2)
    assert op.run("slow", "tpu", 4) == ("slow", 2)


def test_a_named_backend_never_falls_back(op: Op) -> None:
    with pytest.raises(KernelUnsupported, match="half: backend 'fast' cannot do this: it takes even numbers only"):
        op.run("fast", "tpu", 3)


def test_auto_takes_the_platforms_backend_where_it_can(op: Op) -> None:
    assert op.run("auto", "tpu", 4) == ("fast", 2)
    assert op.run("auto", "tpu", 3) == ("slow", 1.5)
    assert op.run("auto", "cpu", 4) == ("slow", 2)
    assert op.run("auto", None, 4) == ("slow", 2)


def test_an_unknown_backend_lists_the_known_ones(op: Op) -> None:
    with pytest.raises(ValueError, match="half has no backend 'quick'; use one of auto, slow, fast, broken"):
        op.run("quick", None, 4)


def test_backends_are_imported_when_used(op: Op) -> None:
    op.run("slow", None, 4)
    with pytest.raises(ModuleNotFoundError):
        op.run("broken", None, 4)
