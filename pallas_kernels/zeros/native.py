"""Zeros that a CPU's system writes when they are first asked for (`pallas_kernels/native/zeros.h`).

A cache of 4 GB takes no memory and no time before it is used. To write its zeros took two to five seconds of the processor,
nearly all of it for a million pages of memory.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels import native

TYPES = frozenset(
    map(
        jnp.dtype,
        ("bfloat16", "float32", "int32", "uint16", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"),
    )
)
"""Those of XLA's types whose size is known there."""

LEAST_BYTES = 16 << 20
"""Of an array that is worth it: less is written in a few milliseconds, and what is called has to be built first."""


def supports(shape: tuple[int, ...], dtype: DTypeLike) -> str | None:
    """None, or that the array is small or of another type, or that it is not registered."""
    if jnp.dtype(dtype) not in TYPES:
        return f"{dtype} is not one of its types"
    size = math.prod(shape) * jnp.dtype(dtype).itemsize
    if size < LEAST_BYTES:
        return f"{size} bytes are fewer than {LEAST_BYTES}"
    return native.NOT_REGISTERED if native.call_name(native.ZEROS) is None else None


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """See the op's contract."""
    call: Any = jax.ffi.ffi_call(native.call_name(native.ZEROS) or "", jax.ShapeDtypeStruct(shape, dtype))
    made: jax.Array = call()
    return made
