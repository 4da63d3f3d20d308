"""Writing keys and values in C++ on a CPU (`pallas_kernels/native/write_kv.h`), into pages of bfloat16 and float32 as a CPU keeps
them: of a scatter XLA makes a loop over tokens, each of several calls.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels import native


def supports(kv_pages: Any, k: Any, *args: Any, kv_dtype: DTypeLike) -> str | None:
    """None, or which pages it does not write, or that it is not registered."""
    if native.call_name(native.WRITE) is None:
        return native.NOT_REGISTERED
    if kv_dtype not in (jnp.bfloat16, jnp.float32):
        return f"pages hold {jnp.dtype(kv_dtype)}, and it writes bfloat16 and float32"
    if kv_pages.shape[2:] != (2 * k.shape[1], k.shape[2]):
        return f"pages are {list(kv_pages.shape)}, not [pages, T, 2K, H] as a CPU keeps them"
    return None


def write_kv(kv_pages: jax.Array, k: jax.Array, v: jax.Array, slots: jax.Array, *, kv_dtype: DTypeLike) -> jax.Array:
    """See the op's contract."""
    symbol = native.FLOAT32_WRITE if kv_dtype == jnp.float32 else native.WRITE
    same = jax.ShapeDtypeStruct(kv_pages.shape, kv_pages.dtype)
    call: Any = jax.ffi.ffi_call(native.call_name(symbol) or "", same, input_output_aliases={0: 0})
    written: jax.Array = call(kv_pages, k.astype(jnp.float32), v.astype(jnp.float32), slots)
    return written
