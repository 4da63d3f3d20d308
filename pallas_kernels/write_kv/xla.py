"""Writing keys and values as one XLA scatter over whole tokens, which stays in place in a donated cache on every platform.

Of a single token XLA:CPU makes a plain update, and copies the pool for it; a second one, to the sink, keeps it a scatter.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.storage import KV_DTYPES, join_heads, to_storage

MIN_TOKENS = 2


def supports(kv_pages: Any, *args: Any, kv_dtype: DTypeLike) -> str | None:
    """None, or why not."""
    return None if kv_dtype in KV_DTYPES else f"kv_pages of {kv_pages.dtype} hold no keys and values"


def write_kv(kv_pages: jax.Array, k: jax.Array, v: jax.Array, slots: jax.Array, *, kv_dtype: DTypeLike) -> jax.Array:
    """See the op's contract."""
    pages, page_tokens, channels, lanes = kv_pages.shape
    missing = max(0, MIN_TOKENS - slots.shape[0])
    k, v, slots = (jnp.pad(array, ((0, missing), *((0, 0),) * (array.ndim - 1))) for array in (k, v, slots))
    tokens = join_heads(k, v, channels=channels, lanes=lanes)
    stored = to_storage(tokens, storage=kv_pages.dtype, kv_dtype=kv_dtype)
    by_slot = kv_pages.reshape(pages * page_tokens, channels, lanes)
    return by_slot.at[slots].set(stored, mode="drop").reshape(kv_pages.shape)
