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
