"""Products with packed matrices in C++ on a CPU (`pallas_kernels/native/packed.h`): all of them in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import native


def supports(*args: Any, **options: Any) -> str | None:
    """None, or that it is not registered."""
    return native.NOT_REGISTERED if native.call_name(native.PACKED_PRODUCT) is None else None


def packed_matmul(
    x: jax.Array,
    matrices: Sequence[jax.Array],
    biases: Sequence[jax.Array | None],
    *,
    activation: str | None,
    used: jax.Array | None,
) -> tuple[jax.Array, ...]:
    """See the op's contract."""
    rows, inputs = x.shape
    outputs = [matrix.shape[0] * matrix.shape[2] for matrix in matrices]
    rounded = rows * inputs if matrices[0].dtype == jnp.bfloat16 else 0
    results = (
        *(jax.ShapeDtypeStruct((rows, count), jnp.float32) for count in outputs),
        jax.ShapeDtypeStruct((rounded,), jnp.float32),
    )
    call: Any = jax.ffi.ffi_call(native.call_name(native.PACKED_PRODUCT) or "", results)
    none = jnp.zeros(0, jnp.float32)
    of_outputs = [none if bias is None else bias for bias in biases]
    *products, _ = call(x, jnp.int32(rows) if used is None else used, *matrices, *of_outputs, gelu=activation == "gelu")
    return tuple(products)
