"""The definition of multiplying with a matrix: one output after the other would say the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.matmul.parts import WHOLE, Parts
from pallas_kernels.matmul.rows import quantise_rows


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def matmul(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array | None,
    *,
    precision: jax.lax.Precision,
    dtype: DTypeLike = jnp.float32,
    used: jax.Array | None = None,
    parts: Parts = WHOLE,
) -> jax.Array:
    """See the op's contract."""
    if scales is None:
        rounded = x.astype(weight.dtype).astype(jnp.float32)
        wide = weight.astype(jnp.float32)
        return jnp.einsum("...i,oi->...o", rounded, wide, precision=jax.lax.Precision.HIGHEST).astype(dtype)
    values, row_scales = parts.gather(*quantise_rows(x, across=parts.inputs))
    sums = jnp.einsum("...i,oi->...o", values.astype(jnp.int32), weight.astype(jnp.int32))
    return (sums.astype(jnp.float32) * row_scales * scales).astype(dtype)
