"""The definition of multiplying by groups with scaled matrices: each row with its group's own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.grouped_matmul.groups import group_of_row, taken
from pallas_kernels.scaled_matmul.dense import floats
from pallas_kernels.scaled_matmul.reference import four_bits


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits but memory."""
    return None


def grouped_scaled_matmul(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    rows: jax.Array | None,
    precision: jax.lax.Precision,
    dtype: DTypeLike,
) -> jax.Array:
    """See the op's contract, but for the rounding of the matrices."""
    group_of_input = jnp.arange(x.shape[1]) // group
    if weights.dtype == jnp.uint8:
        both = jnp.stack((weights % 16, weights // 16), axis=2)
        weights = four_bits(both, pairs).reshape(len(weights), -1, weights.shape[2])
    matrices = weights.astype(jnp.float32)
    if zeros is not None:
        matrices -= floats(zeros)[:, group_of_input]
    matrices *= floats(scales)[:, group_of_input]
    given = taken(x, rows).astype(compute).astype(jnp.float32)
    own = matrices[group_of_row(sizes, rows=len(given))]
    return jnp.einsum("mi,mio->mo", given, own, precision=jax.lax.Precision.HIGHEST).astype(dtype)
