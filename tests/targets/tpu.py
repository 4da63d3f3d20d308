"""Compile-only TPU devices: the real TPU compiler, without a TPU."""

from __future__ import annotations

from typing import Any

import pytest

from xla_cache.target import Target, target

ONE_CHIP = {"v4": "v4-8", "v5e": "v5e-1", "v5p": "v5p-8", "v6e": "v6e-1", "tpu7x": "tpu7x-2"}
FOUR_CHIPS = {"v4": "v4-8", "v5e": "v5e-4", "v5p": "v5p-8", "v6e": "v6e-4", "tpu7x": "tpu7x-8"}
"""Targets by generation; where there is none of one chip, or its cores are devices, the first devices of a larger one."""


def available(name: str) -> Target:
    """The target of that name; skips where its compiler is not installed."""
    found = target(name)
    if found.missing is not None:
        pytest.skip(f"needs {found.missing}")
    return found


def devices(generation: str, *, count: int) -> list[Any]:
    """Compile-only devices of one TPU generation; skips where libtpu is not installed."""
    return available((ONE_CHIP if count == 1 else FOUR_CHIPS)[generation]).devices()[:count]
