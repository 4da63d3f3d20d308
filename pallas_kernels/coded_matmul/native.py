"""Products with coded matrices in C++ on a CPU with AVX-512 (`pallas_kernels/native/coded.h`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import native
from pallas_kernels.coded_matmul import HEAD
from pallas_kernels.matmul.native import scratch_bytes


def supports(*args: Any, **options: Any) -> str | None:
    """None, or that it is not registered."""
    return native.NOT_REGISTERED if native.call_name(native.CODED_PRODUCT) is None else None


def coded_matmul(x: jax.Array, matrices: Sequence[jax.Array], *, used: jax.Array | None) -> tuple[jax.Array, ...]:
    """See the op's contract."""
    rows, inputs = x.shape
    results = (
        *(jax.ShapeDtypeStruct((rows, len(matrix)), jnp.float32) for matrix in matrices),
        jax.ShapeDtypeStruct((scratch_bytes(rows, inputs, x.dtype),), jnp.uint8),
    )
    call: Any = jax.ffi.ffi_call(native.call_name(native.CODED_PRODUCT) or "", results)
    *products, _ = call(x, jnp.int32(rows) if used is None else used, *matrices)
    return tuple(products)


def coded_rows(numbers: jax.Array, matrix: jax.Array) -> jax.Array:
    """See the op's contract."""
    rows = jax.ShapeDtypeStruct((len(numbers), matrix.shape[1] - HEAD), jnp.bfloat16)
    found: jax.Array = jax.ffi.ffi_call(native.call_name(native.CODED_ROWS) or "", rows)(numbers, matrix)
    return found
