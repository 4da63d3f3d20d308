"""The definition of paged attention: gather everything, mask, softmax in float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.storage import KV_DTYPES, split_heads, to_float32


def supports(q: Any, kv_pages: Any, *args: Any, kv_dtype: DTypeLike, **options: Any) -> str | None:
    """None, or why not."""
    return None if kv_dtype in KV_DTYPES else f"kv_pages of {kv_pages.dtype} hold no keys and values"


def paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
    alibi_slopes: jax.Array | None,
    kv_scales: jax.Array | None,
    kv_dtype: DTypeLike,
    kv_heads: int,
) -> jax.Array:
    """See the op's contract. Memory: all pages of all rows, in float32."""
    rows, places, heads, head_size = q.shape
    positions = jnp.arange(page_table.shape[1] * kv_pages.shape[1])

    cached = to_float32(kv_pages[page_table], kv_dtype=kv_dtype).reshape(rows, -1, *kv_pages.shape[2:])
    written = positions < (starts + lengths)[:, None]
    cached = jnp.where(written[:, :, None, None], cached, 0.0)  # a NaN behind the row's end times 0 is a NaN
    keys, values = split_heads(cached, kv_heads=kv_heads, head_size=head_size)
    if kv_scales is not None:
        keys, values = keys * kv_scales[0, :, None], values * kv_scales[1, :, None]

    grouped = q.astype(jnp.float32).reshape(rows, places, kv_heads, heads // kv_heads, head_size)
    scores = scale * jnp.einsum("bskgh,bpkh->bskgp", grouped, keys, precision="highest")
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)

    token = starts[:, None] + jnp.arange(places)  # [B, S]
    if alibi_slopes is not None:
        slopes = alibi_slopes.astype(jnp.float32).reshape(kv_heads, -1, 1)
        scores += slopes * (positions - token[:, :, None]).astype(jnp.float32)[:, :, None, None, :]
    visible = positions <= token[:, :, None]
    if window is not None:
        visible &= positions > token[:, :, None] - window
    scores = jnp.where(visible[:, :, None, None, :], scores, -jnp.inf)
    if sinks is not None:
        sink = jnp.broadcast_to(
            sinks.astype(jnp.float32).reshape(kv_heads, -1, 1), (rows, places, kv_heads, heads // kv_heads, 1)
        )
        scores = jnp.concatenate([scores, sink], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., : positions.size]
    mixed = jnp.einsum("bskgp,bpkh->bskgh", weights, values, precision="highest").reshape(q.shape)
    real = jnp.arange(places) < lengths[:, None]
    return jnp.where(real[:, :, None, None], mixed, 0.0).astype(q.dtype)
