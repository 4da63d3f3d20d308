"""The rows of groups: which they are, and whose."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.matmul.rows import quantise_rows


def group_of_row(sizes: jax.Array, *, rows: int) -> jax.Array:
    """The group of each of so many rows, int32 `[rows]`; behind the last group it is the last one."""
    before = jnp.cumsum(sizes)[None, :-1] <= jnp.arange(rows, dtype=jnp.int32)[:, None]
    return before.sum(axis=1, dtype=jnp.int32)


def taken(x: jax.Array, rows: jax.Array | None) -> jax.Array:
    """The `rows` of `x`, or all as they are."""
    return x if rows is None else jnp.take(x, rows, axis=0, mode="clip")


def quantised(x: jax.Array, rows: jax.Array | None, *, across: tuple[str, ...]) -> tuple[jax.Array, jax.Array]:
    """The `rows` of `x` as int8, and their scales `[M, 1]`: `quantise_rows` before they are taken, as some are taken often."""
    values, scales = quantise_rows(x, across=across)
    return taken(values, rows), taken(scales, rows)


def most_blocks(count: int, groups: int, block_rows: int) -> int:
    """Of so many rows: most are needed where as many groups as can be have rows."""
    filled = min(groups, count)
    return filled + (count - filled) // block_rows


def row_blocks(sizes: jax.Array, most: int, block_rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The group, the first row and the number of rows of each block, int32 `[most]`; those that are not needed have no rows."""
    ends, needed = jnp.cumsum(sizes), -(-sizes // block_rows)
    after = jnp.cumsum(needed)
    block = jnp.arange(most, dtype=jnp.int32)
    group = jnp.minimum((after <= block[:, None]).sum(axis=1, dtype=jnp.int32), sizes.size - 1)
    first = (ends - sizes)[group] + (block - (after - needed)[group]) * block_rows
    return group, first, jnp.where(block < after[-1], jnp.minimum(ends[group] - first, block_rows), 0)
