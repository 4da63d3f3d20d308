"""The definition of the choice: token by token, all scores of its sequence, sorted."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from pallas_kernels.choose_tokens.xla import supports as supports
from pallas_kernels.storage import to_float32


def choose_tokens(
    q: jax.Array,
    weights: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    *,
    count: int,
    kv_dtype: DTypeLike,
) -> jax.Array:
    """See the op's contract."""
    positions = jnp.arange(page_table.shape[1] * pages.shape[2], dtype=jnp.int32)

    def choose(place: jax.Array) -> jax.Array:
        row = jnp.sum(offsets[1:] <= place)  # the rows that end before it
        own = starts[row] + place - offsets[row]
        keys = to_float32(pages[page_table[row]], kv_dtype=kv_dtype).reshape(-1, pages.shape[3])[:, : q.shape[2]]
        products = jnp.maximum(jnp.matmul(q[place].astype(jnp.float32), keys.T, precision="highest"), 0.0)
        scores = jnp.where(positions <= own, jnp.matmul(weights[place], products, precision="highest"), -jnp.inf)
        best = jnp.argsort(-scores, stable=True)[:count].astype(jnp.int32)
        return jnp.where(own < count, positions[:count], jnp.sort(best))

    result: jax.Array = lax.map(choose, jnp.arange(q.shape[0]))
    return result
