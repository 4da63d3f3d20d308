"""Paged attention for NVIDIA GPUs from Ampere on, in Pallas: which cases there are, and how they are laid out for the kernel.

Pallas' Triton lowering is deprecated since jax 0.11 and still there in 0.12; its successor, Mosaic GPU, is for Hopper on only.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.gpu.attention.blocks import MIN_WIDTH, power_of_two
from pallas_kernels.gpu.attention.pages import compute_dtype, converts, refused
from pallas_kernels.gpu.attention.rows import Kernel, attend_rows
from pallas_kernels.gpu.device import AMPERE, gpu_refused, interpreted
from pallas_kernels.paged_attention.gpu_blocks import choose_blocks
from pallas_kernels.paged_attention.gpu_kernel import Settings, kernel

MAX_HEAD_SIZE = 256
MAX_GROUP = 64


def supports(
    q: Any,
    kv_pages: Any,
    page_table: Any,
    *args: Any,
    kv_dtype: DTypeLike,
    kv_heads: int,
    until: Any = None,
    **options: Any,
) -> str | None:
    """None, or why not."""
    _, heads, head_size = q.shape
    if until is not None:
        return "its kernel is not built for tokens that see others than those up to themselves (until)"
    unreadable = refused(kv_pages, kv_dtype)
    if unreadable is not None:
        return unreadable
    if kv_pages.shape[2:] != (2 * kv_heads, head_size):
        return f"kv_pages of {tuple(kv_pages.shape[1:])} are shaped for a TPU; allocate them for platform='gpu'"
    if head_size > MAX_HEAD_SIZE:
        return f"head size {head_size}; a block of keys and values is held for sizes up to {MAX_HEAD_SIZE}"
    if heads // kv_heads > MAX_GROUP:
        return f"{heads // kv_heads} query heads per KV head; a tile holds {MAX_GROUP}"
    return gpu_refused(AMPERE)


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
    """See the op's contract. Products take the cache's dtype, bfloat16 for a quantised one, and add up in float32."""
    places, heads, head_size = q.shape
    page_tokens = kv_pages.shape[1]
    group = heads // kv_heads
    compute = compute_dtype(kv_dtype)
    width = max(MIN_WIDTH, power_of_two(head_size))
    blocks = choose_blocks(
        rows=starts.shape[0],
        places=places,
        group=group,
        kv_heads=kv_heads,
        width=width,
        itemsize=compute.itemsize,
        most_tokens=page_table.shape[1] * page_tokens,
        interpreted=interpreted(),
    )

    def make_kernel(sizes: tuple[int, ...], block_tokens: int, shared: bool) -> Kernel:
        settings = Settings(
            sizes=sizes,
            block_tokens=block_tokens,
            shared=shared,
            group=group,
            width=width,
            page_tokens=page_tokens,
            compute=compute,
            converts=converts(kv_dtype),
            scale=scale,
            window=window,
            soft_cap=soft_cap,
            has_sinks=sinks is not None,
            has_slopes=alibi_slopes is not None,
            has_scales=kv_scales is not None,
        )
        return functools.partial(kernel, settings=settings)

    operands = [q, kv_pages.reshape(-1, *kv_pages.shape[2:]), page_table]
    operands += [array.astype(jnp.float32) for array in (sinks, alibi_slopes, kv_scales) if array is not None]
    return attend_rows(
        make_kernel,
        blocks,
        operands,
        offsets,
        starts,
        result=jax.ShapeDtypeStruct(q.shape, q.dtype),
        tiles_of_heads=kv_heads,
        window=window,
        name="paged_attention",
    )
