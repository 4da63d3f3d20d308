"""The definition of writing keys and values: one token after the other."""

from __future__ import annotations

from typing import Any

import jax
from jax.typing import DTypeLike

from pallas_kernels.storage import KV_DTYPES, join_heads, to_storage


def supports(kv_pages: Any, *args: Any, kv_dtype: DTypeLike) -> str | None:
    """None, or why not."""
    return None if kv_dtype in KV_DTYPES else f"kv_pages of {kv_pages.dtype} hold no keys and values"


def write_kv(kv_pages: jax.Array, k: jax.Array, v: jax.Array, slots: jax.Array, *, kv_dtype: DTypeLike) -> jax.Array:
    """See the op's contract."""
    _, page_tokens, channels, lanes = kv_pages.shape

    def write(token: jax.Array, pages: jax.Array) -> jax.Array:
        page, offset = slots[token] // page_tokens, slots[token] % page_tokens
        piece = join_heads(k[token], v[token], channels=channels, lanes=lanes)
        return pages.at[page, offset].set(to_storage(piece, storage=pages.dtype, kv_dtype=kv_dtype))

    return jax.lax.fori_loop(0, len(k), write, kv_pages)
