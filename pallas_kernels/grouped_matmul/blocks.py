"""Blocks of rows of one group, one after the other: as many products as there are blocks, each with one matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike


def multiply_blocks(
    x: jax.Array,
    matrices: Any,
    sizes: jax.Array,
    multiply: Callable[[jax.Array, Any], jax.Array],
    *,
    block_rows: int,
    outputs: int,
    dtype: DTypeLike,
) -> jax.Array:
    """Sorted rows `x [M, I]`, `sizes[g]` of them times the matrix of each group -> `[M, outputs]` in `dtype`.

    `matrices` is one array, or several, with an axis of groups first; `multiply` takes `block_rows` rows and what stands for the
    matrix of one.
    """
    ends, blocks = jnp.cumsum(sizes), -(-sizes // block_rows)
    blocks_to = jnp.cumsum(blocks)
    starts, blocks_before = ends - sizes, blocks_to - blocks
    x = jnp.pad(x, ((0, block_rows), (0, 0)))
    shape = (block_rows, outputs)

    def step(number: jax.Array, sums: jax.Array) -> jax.Array:
        group = (blocks_to <= number).sum()
        first = starts[group] + (number - blocks_before[group]) * block_rows

        def product(matrices: Any) -> jax.Array:
            rows = lax.dynamic_slice_in_dim(x, first, block_rows)
            matrix = jax.tree.map(lambda each: lax.dynamic_index_in_dim(each, group, keepdims=False), matrices)
            return multiply(rows, matrix).astype(dtype)

        # A block always has rows, which XLA does not know. Without the branch jax 0.10's turns all matrices of bfloat16 into
        # float32 before the loop.
        found = lax.cond(sizes[group] > 0, product, lambda _: jnp.zeros(shape, dtype), matrices)
        # What a block writes behind its group, the next one writes again.
        return lax.dynamic_update_slice_in_dim(sums, found, first, axis=0)

    sums = jnp.zeros((x.shape[0], outputs), dtype)
    return lax.fori_loop(0, blocks_to[-1], step, sums)[:-block_rows]
