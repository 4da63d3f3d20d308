"""XLA's products on a TPU, of rows that XLA does not take itself (`take_rows`)."""

from __future__ import annotations

from typing import Any

import jax
from jax.typing import DTypeLike

from pallas_kernels.grouped_matmul import xla
from pallas_kernels.take_rows import OP as TAKE
from pallas_kernels.take_rows import take_rows


def supports(x: Any, weights: Any, sizes: Any, rows: Any, scales: Any, **options: Any) -> str | None:
    """None, or why not."""
    if rows is None or scales is not None:
        return "it takes rows that are not rounded, out of others"
    taking = TAKE.choose("tpu", jax.ShapeDtypeStruct(x.shape, weights.dtype), rows, None)
    return "XLA takes these rows itself" if taking == TAKE.portable else None


def grouped_matmul(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    rows: jax.Array,
    scales: None,
    *,
    precision: jax.lax.Precision,
    across: tuple[str, ...],
    dtype: DTypeLike,
) -> jax.Array:
    """See the op's contract."""
    given = take_rows(x.astype(weights.dtype), rows, sizes.sum(), platform="tpu")
    return xla.grouped_matmul(given, weights, sizes, None, scales, precision=precision, across=across, dtype=dtype)
