"""Products with coded matrices in C++ on a CPU that multiplies pairs of bfloat16 (`pallas_kernels/native/coded.h`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import native
from pallas_kernels.coded_matmul import HEAD


def supports(*args: Any, **options: Any) -> str | None:
    """None, or that it is not registered."""
    return native.NOT_REGISTERED if native.call_name(native.CODED_PRODUCT) is None else None


def coded_matmul(x: jax.Array, matrices: Sequence[jax.Array], *, used: jax.Array | None) -> tuple[jax.Array, ...]:
    """See the op's contract."""
    results = tuple(jax.ShapeDtypeStruct((len(x), len(matrix)), jnp.float32) for matrix in matrices)
    call: Any = jax.ffi.ffi_call(native.call_name(native.CODED_PRODUCT) or "", results)
    products: tuple[jax.Array, ...] = tuple(call(x, jnp.int32(len(x)) if used is None else used, *matrices))
    return products


def coded_rows(numbers: jax.Array, matrix: jax.Array) -> jax.Array:
    """See the op's contract."""
    rows = jax.ShapeDtypeStruct((len(numbers), matrix.shape[1] - HEAD), jnp.bfloat16)
    found: jax.Array = jax.ffi.ffi_call(native.call_name(native.CODED_ROWS) or "", rows)(numbers, matrix)
    return found
