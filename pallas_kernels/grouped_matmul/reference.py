"""The definition of multiplying by groups: each row with a copy of its group's matrix."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.grouped_matmul.groups import group_of_row, quantised, taken


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits but memory."""
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
    """See the op's contract."""
    group = group_of_row(sizes, rows=(x if rows is None else rows).shape[0])
    if scales is None:
        rounded, own = taken(x, rows).astype(weights.dtype).astype(jnp.float32), weights[group].astype(jnp.float32)
        return jnp.einsum("mi,mio->mo", rounded, own, precision=jax.lax.Precision.HIGHEST).astype(dtype)
    values, row_scales = quantised(x, rows, across=across)
    sums = jnp.einsum("mi,mio->mo", values.astype(jnp.int32), weights[group].astype(jnp.int32))
    return (sums.astype(jnp.float32) * row_scales * scales[group]).astype(dtype)
