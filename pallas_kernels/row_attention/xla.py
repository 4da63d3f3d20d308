"""Attention within rows in plain XLA: that of pages (`paged_attention.xla`), with a page for each place.

So on a CPU a token's result is the same to the last bit whatever else is in the step.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.paged_attention.xla import attend_pages
from pallas_kernels.row_attention.relative import Relative


def supports(*args: Any, **options: Any) -> str | None:
    """None: it can do every case."""
    return None


def row_attention(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    offsets: jax.Array,
    *,
    scale: float,
    window: int | None,
    relative: Relative | None,
) -> jax.Array:
    """See the op's contract. Memory: a number of each place for each row, and a block of keys and values."""
    places, kv_heads, head_size = keys.shape
    pages = jnp.stack([keys, values], axis=1)[:, None]  # [N, 1, 2, K, H]

    def split(found: jax.Array) -> tuple[jax.Array, jax.Array]:
        flat = found.reshape(len(found), -1, 2, kv_heads, head_size)
        return flat[:, :, 0], flat[:, :, 1]

    def added(row: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
        assert relative is not None
        begin = offsets.at[row].get(mode="clip")[:, None]
        return relative.added(begin + query, begin + key)

    return attend_pages(
        q,
        pages,
        offsets[:-1, None] + jnp.arange(places, dtype=jnp.int32),
        offsets,
        jnp.zeros(offsets.shape[0] - 1, jnp.int32),
        scale=scale,
        window=window,
        both_sides=True,
        added=None if relative is None else added,
        kv_dtype=keys.dtype,
        kv_heads=kv_heads,
        value_size=head_size,
        page_tokens=1,
        split=split,
    )
