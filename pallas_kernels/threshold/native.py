"""Thresholds in C++ on a CPU (`pallas_kernels/native/threshold.h`): a value's bits in three turns, the last two of few values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import native


def supports(*args: Any, axis: tuple[str, ...] | None, **options: Any) -> str | None:
    """None, or that rows are cut, or that it is not registered."""
    if axis is not None:
        return f"rows are cut over {', '.join(axis)}"
    return native.NOT_REGISTERED if native.call_name(native.THRESHOLD) is None else None


def threshold(
    values: jax.Array,
    weights: jax.Array | None,
    *,
    floor: jax.Array,
    best: jax.Array,
    target: jax.Array,
    active: jax.Array,
    lightest: Callable[[jax.Array], jax.Array] | None,
    axis: tuple[str, ...] | None,
) -> jax.Array:
    """See the op's contract."""
    call: Any = jax.ffi.ffi_call(
        native.call_name(native.THRESHOLD) or "", jax.ShapeDtypeStruct(floor.shape, jnp.float32)
    )
    weights = jnp.zeros((0, 0), jnp.int32) if weights is None else weights
    found: jax.Array = call(values, weights, floor, jnp.where(active, target, 0))
    return found
