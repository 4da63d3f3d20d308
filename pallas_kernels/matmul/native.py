"""The CPU's product in C++ (`pallas_kernels/native`): weights as they lie, with few rows in half the time of XLA's and less.

A row's sum is made in the same order by any thread, beside any rows. All three types and all numbers of rows are multiplied
here: XLA sums a row in another order, so the number of rows must not decide. `benchmarks/cpu_matmul.py` times it beside XLA's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels import native
from pallas_kernels.matmul.parts import WHOLE, Parts

_ROUNDED = {"bfloat16": jnp.bfloat16, "float32": jnp.float32, "int8": jnp.float32}
"""What rows are given as, by the type of the weight."""

_CALLS = {"bfloat16": native.PRODUCT, "float32": native.FLOAT32_PRODUCT, "int8": native.INT8_PRODUCT}

_PADDING, _ROW_SCALE_BYTES, _ROUNDED_BYTES, _LINE = 64, 8, 2, 64


def supports(
    x: jax.Array, weight: jax.Array, scales: jax.Array | None, *, parts: Parts = WHOLE, **options: Any
) -> str | None:
    """None, or which type it does not multiply, that rows are cut, or that it is not registered."""
    if native.call_name(native.PRODUCT) is None:
        return native.NOT_REGISTERED
    if str(weight.dtype) not in _ROUNDED:
        return f"weight is of {weight.dtype}, and it multiplies {', '.join(_ROUNDED)}"
    if parts != WHOLE:
        return "it rounds rows that are whole on this device"
    return None


def matmul(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array | None,
    *,
    precision: jax.lax.Precision | None = None,
    dtype: DTypeLike = jnp.float32,
    used: jax.Array | None = None,
    parts: Parts = WHOLE,
) -> jax.Array:
    """See the op's contract. `precision` changes nothing: products are never rounded."""
    return products(x, (weight,), (scales,), dtype=dtype, used=used)[0]


def products(
    x: jax.Array,
    weights: Sequence[jax.Array],
    scales: Sequence[jax.Array | None],
    *,
    dtype: DTypeLike,
    used: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """`x` times each of the weights, which are of one type, in one call. Rows that are not `used` get zeros."""
    inputs, of_weights = x.shape[-1], weights[0].dtype
    rows = x.reshape(-1, inputs).astype(_ROUNDED[str(of_weights)])
    results = (
        *(jax.ShapeDtypeStruct((len(rows), len(weight)), jnp.float32) for weight in weights),
        jax.ShapeDtypeStruct((scratch_bytes(len(rows), inputs, of_weights),), jnp.uint8),
    )
    call: Any = jax.ffi.ffi_call(native.call_name(_CALLS[str(of_weights)]) or "", results)
    count = jnp.int32(len(rows)) if used is None else used
    of_outputs = [jnp.zeros(0, jnp.float32) if each is None else each for each in scales]
    *sums, _ = call(rows, count, *weights, *of_outputs)
    return tuple(each.reshape(*x.shape[:-1], -1).astype(dtype) for each in sums)


def scratch_bytes(rows: int, inputs: int, dtype: Any) -> int:
    """What `prepared_bytes` of product.h says, at most, and a line of the caches, where they may begin."""
    padded = -(-inputs // _PADDING) * _PADDING
    each = _ROW_SCALE_BYTES + padded * _ROUNDED_BYTES if dtype == jnp.int8 else 4 * padded
    return rows * each + _LINE
