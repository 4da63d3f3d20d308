"""What GPU kernels read of pages: where positions lie, and stored values as products take them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike

from pallas_kernels.gpu.device import ADA, gpu_refused
from pallas_kernels.storage import FLOAT8, HALF, KV_DTYPES, QUANTISED, to_float32


def refused(pages: Any, kv_dtype: DTypeLike) -> str | None:
    """None, or why a GPU kernel cannot read pages of `kv_dtype` values, of whatever shape."""
    kv_dtype = jnp.dtype(kv_dtype)
    if kv_dtype not in KV_DTYPES:
        return f"pages of {pages.dtype} hold no cache"
    if pages.dtype != kv_dtype:
        return f"pages hold the bits of {kv_dtype} as {pages.dtype}, which only the CPU needs"
    if kv_dtype.itemsize == 1 and 2**31 < math.prod(pages.shape) <= 2**32:
        return "the lowering counts the values of a pool of 2 to 4 GiB in 32 signed bits: make it smaller or larger"
    return None


def compute_dtype(kv_dtype: DTypeLike) -> Any:
    """What products take of values that are stored so."""
    return HALF if jnp.dtype(kv_dtype) in QUANTISED else jnp.dtype(kv_dtype)


def converts(kv_dtype: DTypeLike) -> bool:
    """Whether the device has instructions that make products' operands of what is stored."""
    return jnp.dtype(kv_dtype) != FLOAT8 or gpu_refused(ADA) is None


def slots_of_block(
    table: Any, row: jax.Array, block: jax.Array, readable: jax.Array | None, *, tokens: int, page_tokens: int
) -> jax.Array:
    """The slots of a row's block of `tokens` positions, page times tokens and offset.

    Of positions that are not `readable` (None: all are) no wild ones; a block has one that is.
    """
    offset = jnp.arange(tokens, dtype=jnp.int32)
    position = block * tokens + offset
    if page_tokens % tokens == 0:  # it lies in one page
        first = block * tokens
        return table[row, first // page_tokens] * page_tokens + first % page_tokens + offset
    page = plgpu.load(table.at[row, position // page_tokens], mask=readable, other=0 if readable is not None else None)
    return page * page_tokens + position % page_tokens


def operand(stored: jax.Array, *, compute: DTypeLike, converts: bool) -> jax.Array:
    """Stored values as products take them."""
    if not converts:
        stored = to_float32(lax.bitcast_convert_type(stored, jnp.uint8), kv_dtype=stored.dtype)
    return stored.astype(compute)
