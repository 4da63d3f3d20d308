"""The definition of latent attention: token by token, gather its row's pages, mask, softmax in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from pallas_kernels.latent_attention.xla import supports as supports
from pallas_kernels.storage import to_float32


def latent_attention(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    *,
    scale: float,
    value_size: int,
    kv_dtype: DTypeLike,
) -> jax.Array:
    """See the op's contract. Memory: all pages of one row, in float32."""
    places, _, size = q.shape
    positions = jnp.arange(page_table.shape[1] * pages.shape[2])

    def attend(place: jax.Array) -> jax.Array:
        """The result `[heads, value_size]` of one token."""
        row = jnp.sum(offsets[1:] <= place)  # the rows that end before it
        visible = positions <= starts[row] + place - offsets[row]
        cached = to_float32(pages[page_table[row]], kv_dtype=kv_dtype).reshape(-1, pages.shape[3])[:, :size]
        cached = jnp.where(visible[:, None], cached, 0.0)  # a NaN in what is not visible times 0 is a NaN
        scores = scale * jnp.matmul(q[place].astype(jnp.float32), cached.T, precision="highest")
        weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=1)
        mixed = jnp.matmul(weights, cached[:, :value_size], precision="highest")
        return jnp.where(place < offsets[-1], mixed, 0.0).astype(q.dtype)

    result: jax.Array = lax.map(attend, jnp.arange(places))
    return result
