"""Attention in C++ on a CPU (`pallas_kernels/native/attention.h`), for pages of bfloat16 and float32 as a CPU keeps them.

A token's result is the same to the last bit whatever else is in the step, as that of `xla`, whose numbers differ from these.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pallas_kernels import native


def supports(q: Any, kv_pages: Any, *args: Any, kv_dtype: DTypeLike, kv_heads: int, **options: Any) -> str | None:
    """None, or which pages it does not read, or that it is not registered."""
    if native.call_name(native.ATTENTION) is None:
        return native.NOT_REGISTERED
    if kv_dtype not in (jnp.bfloat16, jnp.float32):
        return f"pages hold {jnp.dtype(kv_dtype)}, and it reads bfloat16 and float32"
    if kv_pages.shape[2:] != (2 * kv_heads, q.shape[2]):
        return f"pages are {list(kv_pages.shape)}, not [pages, T, 2K, H] as a CPU keeps them"
    return None


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
    """See the op's contract. Queries are rounded to the type of the pages, weights are not."""
    result = jax.ShapeDtypeStruct(q.shape, jnp.float32)
    symbol = native.FLOAT32_ATTENTION if kv_dtype == jnp.float32 else native.ATTENTION
    call: Any = jax.ffi.ffi_call(native.call_name(symbol) or "", result)
    by_head = (
        jnp.zeros(0, jnp.float32) if given is None else given.astype(jnp.float32) for given in (sinks, alibi_slopes)
    )
    attended: jax.Array = call(
        q.astype(kv_dtype),
        kv_pages,
        page_table,
        offsets,
        starts,
        *by_head,
        jnp.zeros(0, jnp.int32) if until is None else until,
        scale=np.float32(scale),
        soft_cap=np.float32(soft_cap or 0.0),
        window=np.int64(window or 0),
    )
    return attended.astype(q.dtype)
