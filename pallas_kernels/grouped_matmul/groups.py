"""Which rows are whose."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def group_of_row(sizes: jax.Array, *, rows: int) -> jax.Array:
    """The group of each of so many rows, int32 `[rows]`; behind the last group it is the last one."""
    before = jnp.cumsum(sizes)[None, :-1] <= jnp.arange(rows, dtype=jnp.int32)[:, None]
    return before.sum(axis=1, dtype=jnp.int32)
