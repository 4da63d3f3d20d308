"""The CPU's products by groups in C++ (`pallas_kernels/native/grouped.h`): each matrix that has rows read once, as it lies.

A row's sum is made in the same order by any thread, beside any rows; of int8 it is exact. Rows are rounded to int8 by XLA, before
some are taken often. `benchmarks/cpu_experts.py` times it beside XLA's.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels import native
from pallas_kernels.grouped_matmul.groups import quantised, taken

_WEIGHTS = ("bfloat16", "float32", "int8")
_ROW_PADDING = 4


def supports(x: Any, weights: Any, *args: Any, **options: Any) -> str | None:
    """None, or which type it does not multiply, or that it is not registered."""
    if native.call_name(native.GROUPED_PRODUCT) is None:
        return native.NOT_REGISTERED
    if str(weights.dtype) not in _WEIGHTS:
        return f"weights are of {weights.dtype}, and it multiplies {', '.join(_WEIGHTS)}"
    return None


def grouped_matmul(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    rows: jax.Array | None,
    scales: jax.Array | None,
    *,
    precision: jax.lax.Precision,
    across: tuple[str, ...],
    dtype: DTypeLike,
) -> jax.Array:
    """See the op's contract. `precision` changes nothing: products are never rounded."""
    if scales is None:
        return multiply(taken(x.astype(weights.dtype), rows), weights, sizes).astype(dtype)
    values, row_scales = quantised(x, rows, across=across)
    return multiply(values, weights, sizes, scales=scales, row_scales=row_scales[:, 0]).astype(dtype)


def multiply(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    *,
    scales: jax.Array | None = None,
    zeros: jax.Array | None = None,
    row_scales: jax.Array | None = None,
    group: int = 1,
    float4: bool = False,
) -> jax.Array:
    """The custom call with what there is: sorted rows `x [M, I]` as they are multiplied -> float32 `[M, O]`."""
    (count, inputs), outputs = x.shape, weights.shape[2]
    nothing = jnp.zeros(0, jnp.float32 if scales is None else scales.dtype)
    padding = -inputs % _ROW_PADDING
    if padding:
        x = jnp.pad(x, ((0, 0), (0, padding)))
    scale_groups = 1 if scales is None or scales.ndim == 2 else scales.shape[1]
    results = (
        jax.ShapeDtypeStruct((count, outputs), jnp.float32),
        jax.ShapeDtypeStruct((4 * count * (inputs + padding + scale_groups),), jnp.uint8),
    )
    call: Any = jax.ffi.ffi_call(native.call_name(native.GROUPED_PRODUCT) or "", results)
    sums: jax.Array = call(
        x,
        weights,
        sizes,
        nothing if scales is None else scales,
        nothing if zeros is None else zeros,
        jnp.zeros(0, jnp.float32) if row_scales is None else row_scales,
        group=group,
        float4=float4,
    )[0]
    return sums
