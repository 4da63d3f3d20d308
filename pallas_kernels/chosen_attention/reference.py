"""The definition: token by token, all of its row's pages, of which the softmax sees what was chosen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from pallas_kernels.chosen_attention.xla import supports as supports
from pallas_kernels.storage import to_float32


def chosen_attention(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    chosen: jax.Array,
    *,
    scale: float,
    value_size: int,
    kv_dtype: DTypeLike,
) -> jax.Array:
    """See the op's contract."""
    places, _, size = q.shape
    positions = jnp.arange(page_table.shape[1] * pages.shape[2], dtype=jnp.int32)

    def attend(place: jax.Array) -> jax.Array:
        row = jnp.sum(offsets[1:] <= place)
        visible = positions <= starts[row] + place - offsets[row]
        visible &= (positions[:, None] == chosen[place]).any(axis=1)
        cached = to_float32(pages[page_table[row]], kv_dtype=kv_dtype).reshape(-1, pages.shape[3])[:, :size]
        cached = jnp.where(visible[:, None], cached, 0.0)
        scores = scale * jnp.matmul(q[place].astype(jnp.float32), cached.T, precision="highest")
        weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=1)
        mixed = jnp.matmul(weights, cached[:, :value_size], precision="highest")
        return jnp.where(place < offsets[-1], mixed, 0.0).astype(q.dtype)

    result: jax.Array = lax.map(attend, jnp.arange(places))
    return result
