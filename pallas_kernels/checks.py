"""Argument checks of the ops: a message names the axis at fault, in the letters of the contract."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def check_rank(**arrays: tuple[Any, str]) -> None:
    """Each array must have as many axes as its letters say: `check_rank(q=(q, "N heads H"))`."""
    for name, (array, letters) in arrays.items():
        if len(array.shape) != len(letters.split()):
            raise ValueError(f"{name} must have axes [{', '.join(letters.split())}], got shape {list(array.shape)}")


def check_equal(axis: str, **extents: int) -> None:
    """The same axis of several arguments must have one extent: `check_equal("H (head size)", q=64, kv_pages=128)`."""
    if len(set(extents.values())) > 1:
        found = ", ".join(f"{size} in {name}" for name, size in extents.items())
        raise ValueError(f"axis {axis} differs: {found}")


def check_int32(**arrays: Any) -> None:
    """Positions, places, ids and slots are int32: a wider type would double what kernels prefetch."""
    for name, array in arrays.items():
        if jnp.dtype(array.dtype) != jnp.int32:
            raise ValueError(f"{name} must be int32, got {array.dtype}")
