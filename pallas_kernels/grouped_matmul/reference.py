"""The definition of multiplying by groups: each row with a copy of its group's matrix."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.grouped_matmul.groups import group_of_row
from pallas_kernels.matmul.rows import quantise_rows


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits but memory."""
    return None


def grouped_matmul(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    scales: jax.Array | None,
    *,
    precision: jax.lax.Precision,
    across: tuple[str, ...],
) -> jax.Array:
    """See the op's contract."""
    group = group_of_row(sizes, rows=x.shape[0])
    if scales is None:
        rounded, own = x.astype(weights.dtype).astype(jnp.float32), weights[group].astype(jnp.float32)
        return jnp.einsum("mi,mio->mo", rounded, own, precision=jax.lax.Precision.HIGHEST)
    values, row_scales = quantise_rows(x, across=across)
    sums = jnp.einsum("mi,mio->mo", values.astype(jnp.int32), weights[group].astype(jnp.int32))
    return sums.astype(jnp.float32) * row_scales * scales[group]
