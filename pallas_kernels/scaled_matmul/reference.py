"""The definition of multiplying with a scaled matrix: that matrix, and a product with it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.scaled_matmul.dense import floats


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def scaled_matmul(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    round_rows: bool,
    precision: jax.lax.Precision,
    used: jax.Array | None = None,
) -> jax.Array:
    """See the op's contract, but for the rounding of the matrix."""
    group_of_input = jnp.arange(weight.shape[1]) // group
    if weight.dtype == jnp.uint8:
        weight = four_bits(jnp.repeat(weight, 2, axis=0).at[::2].set(weight % 16).at[1::2].set(weight // 16), pairs)
    matrix = weight.astype(jnp.float32)
    if zeros is not None:
        matrix -= floats(zeros)[group_of_input].T
    matrix *= floats(scales)[group_of_input].T
    rounded = x.astype(compute).astype(jnp.float32)
    return jnp.einsum("...i,oi->...o", rounded, matrix, precision=jax.lax.Precision.HIGHEST)


FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the lower three bits stand for; the fourth is the sign."""


def four_bits(numbers: jax.Array, pairs: str) -> jax.Array:
    """What 4 bits each stand for."""
    if pairs == "int4":
        return numbers.astype(jnp.int32) - 8
    return jnp.asarray([*FLOAT4, *(-number for number in FLOAT4)], jnp.float32)[numbers]
