"""The definition of writing keys and values: one token after the other."""

from __future__ import annotations

from typing import Any

import jax
from jax.typing import DTypeLike

from pallas_kernels.storage import KV_DTYPES, to_storage


def supports(kv_pages: Any, *args: Any, kv_dtype: DTypeLike) -> str | None:
    """None, or why not."""
    return None if kv_dtype in KV_DTYPES else f"kv_pages of {kv_pages.dtype} are not a float cache"


def write_kv(kv_pages: jax.Array, k: jax.Array, v: jax.Array, slots: jax.Array, *, kv_dtype: DTypeLike) -> jax.Array:
    """See the op's contract."""
    page_tokens = kv_pages.shape[1]
    for token in range(k.shape[0]):
        page, offset = slots[token] // page_tokens, slots[token] % page_tokens
        for channel, values in ((0, k), (1, v)):
            stored = to_storage(values[token], storage=kv_pages.dtype, kv_dtype=kv_dtype)
            kv_pages = kv_pages.at[page, offset, channel::2].set(stored)
    return kv_pages
