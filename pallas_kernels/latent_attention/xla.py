"""Latent attention in plain XLA: paged attention of one KV head, whose values are the first part of its keys."""

from __future__ import annotations

from typing import Any

import jax
from jax.typing import DTypeLike

from pallas_kernels.paged_attention.xla import attend_pages
from pallas_kernels.storage import KV_DTYPES


def supports(q: Any, pages: Any, *args: Any, kv_dtype: DTypeLike, **options: Any) -> str | None:
    """None, or why not."""
    return None if kv_dtype in KV_DTYPES else f"pages of {pages.dtype} hold no latent vectors"


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
    """See the op's contract. Memory: queries and results in float32, and a block of pages of a few tiles."""
    size = q.shape[2]

    def split(blocks: jax.Array) -> tuple[jax.Array, jax.Array]:
        latents = blocks.reshape(len(blocks), -1, 1, blocks.shape[-1])
        return latents[..., :size], latents[..., :value_size]

    return attend_pages(
        q,
        pages,
        page_table,
        offsets,
        starts,
        scale=scale,
        kv_dtype=kv_dtype,
        kv_heads=1,
        value_size=value_size,
        page_tokens=pages.shape[2],
        split=split,
    )
