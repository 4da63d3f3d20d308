"""Blocks of rows with scaled matrices, of which one at a time is made dense."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from pallas_kernels.grouped_matmul.blocks import multiply_blocks
from pallas_kernels.grouped_matmul.groups import taken
from pallas_kernels.scaled_matmul.dense import multiply_dense


def multiply_scaled_blocks(
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
    block_rows: int,
) -> jax.Array:
    """See the op's contract. Products are of `block_rows` rows."""

    def product(rows: jax.Array, matrix: jax.Array) -> jax.Array:
        return lax.dot(rows, matrix, precision=precision, preferred_element_type=jnp.float32)

    def multiply(rows: jax.Array, matrix: tuple[jax.Array, jax.Array, jax.Array | None]) -> jax.Array:
        weight, scales, zeros = matrix
        return multiply_dense(
            rows, weight, scales, zeros, group=group, compute=compute, pairs=pairs, multiply=product, inputs=0
        )

    return multiply_blocks(
        taken(x.astype(compute), rows),
        (weights, scales, zeros),
        sizes,
        multiply,
        block_rows=block_rows,
        outputs=scales.shape[2],
        dtype=dtype,
    )
