"""The definition of paged attention: token by token, gather its row's pages, mask, softmax in float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from pallas_kernels.storage import KV_DTYPES, split_heads, to_float32


def supports(q: Any, kv_pages: Any, *args: Any, kv_dtype: DTypeLike, **options: Any) -> str | None:
    """None, or why not."""
    return None if kv_dtype in KV_DTYPES else f"kv_pages of {kv_pages.dtype} hold no keys and values"


def paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
    alibi_slopes: jax.Array | None,
    until: jax.Array | None,
    kv_scales: jax.Array | None,
    kv_dtype: DTypeLike,
    kv_heads: int,
) -> jax.Array:
    """See the op's contract. Memory: all pages of one row, in float32."""
    places, heads, head_size = q.shape
    positions = jnp.arange(page_table.shape[1] * kv_pages.shape[1])

    def attend(place: jax.Array) -> jax.Array:
        """The result `[heads, H]` of one token."""
        row = jnp.sum(offsets[1:] <= place)  # the rows that end before it
        token = starts[row] + place - offsets[row]
        visible = positions <= (token if until is None else until[place])
        if window is not None:
            visible &= positions > token - window

        cached = to_float32(kv_pages[page_table[row]], kv_dtype=kv_dtype).reshape(-1, *kv_pages.shape[2:])
        cached = jnp.where(visible[:, None, None], cached, 0.0)  # a NaN in what is not visible times 0 is a NaN
        keys, values = split_heads(cached, kv_heads=kv_heads, head_size=head_size)
        if kv_scales is not None:
            keys, values = keys * kv_scales[0, :, None], values * kv_scales[1, :, None]

        grouped = q[place].astype(jnp.float32).reshape(kv_heads, -1, head_size)
        scores = scale * jnp.einsum("kgh,pkh->kgp", grouped, keys, precision="highest").reshape(heads, -1)
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        if alibi_slopes is not None:
            scores += alibi_slopes.astype(jnp.float32)[:, None] * (positions - token).astype(jnp.float32)
        scores = jnp.where(visible, scores, -jnp.inf)
        if sinks is not None:
            scores = jnp.concatenate([scores, sinks.astype(jnp.float32)[:, None]], axis=1)
        weights = jax.nn.softmax(scores, axis=1)[:, : positions.size].reshape(kv_heads, -1, positions.size)
        mixed = jnp.einsum("kgp,pkh->kgh", weights, values, precision="highest")
        return jnp.where(place < offsets[-1], mixed.reshape(heads, head_size), 0.0).astype(q.dtype)

    result: jax.Array = lax.map(attend, jnp.arange(places))
    return result
