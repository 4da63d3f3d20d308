"""Paged attention for NVIDIA GPUs from Ampere on, in Pallas: which cases there are, and how they are laid out for the kernel.

Pallas' Triton lowering is deprecated since jax 0.11 and still there in 0.12; its successor, Mosaic GPU, is for Hopper on only.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike

from pallas_kernels.gpu_device import ADA, AMPERE, gpu_refused, interpreted
from pallas_kernels.paged_attention.gpu_blocks import MIN_WIDTH, STAGES, choose_blocks, power_of_two
from pallas_kernels.paged_attention.gpu_kernel import Settings, combine, kernel
from pallas_kernels.paged_attention.gpu_schedule import cut, make_rows, share_out
from pallas_kernels.storage import FLOAT8, HALF, KV_DTYPES, QUANTISED

MAX_HEAD_SIZE = 256
MAX_GROUP = 64


def supports(
    q: Any, kv_pages: Any, page_table: Any, *args: Any, kv_dtype: DTypeLike, kv_heads: int, **options: Any
) -> str | None:
    """None, or why not."""
    _, heads, head_size = q.shape
    kv_dtype = jnp.dtype(kv_dtype)
    if kv_dtype not in KV_DTYPES:
        return f"kv_pages of {kv_pages.dtype} hold no keys and values"
    if kv_pages.dtype != kv_dtype:
        return f"kv_pages hold the bits of {kv_dtype} as {kv_pages.dtype}, which only the CPU needs"
    if kv_pages.shape[2:] != (2 * kv_heads, head_size):
        return f"kv_pages of {tuple(kv_pages.shape[1:])} are shaped for a TPU; allocate them for platform='gpu'"
    if kv_dtype.itemsize == 1 and 2**31 < math.prod(kv_pages.shape) <= 2**32:
        return "the lowering counts the values of a pool of 2 to 4 GiB in 32 signed bits: make it smaller or larger"
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
    kv_scales: jax.Array | None,
    kv_dtype: DTypeLike,
    kv_heads: int,
) -> jax.Array:
    """See the op's contract. Products take the cache's dtype, bfloat16 for a quantised one, and add up in float32.

    Rows of few tokens are attended by one kernel, whose programs share a row's context, and combined by a second; longer ones by
    a third one, which is left out where N makes them impossible. Memory beside the result: float32 states of few tokens'
    results, one for each share.
    """
    places, heads, head_size = q.shape
    page_tokens = kv_pages.shape[1]
    group = heads // kv_heads
    compute = HALF if jnp.dtype(kv_dtype) in QUANTISED else jnp.dtype(kv_dtype)
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
    few, many = blocks.few, blocks.many
    settings = Settings(
        sizes=few.sizes,
        block_tokens=blocks.block_tokens,
        shared=True,
        group=group,
        width=width,
        page_tokens=page_tokens,
        compute=compute,
        converts=kv_dtype != FLOAT8 or gpu_refused(ADA) is None,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        has_sinks=sinks is not None,
        has_slopes=alibi_slopes is not None,
        has_scales=kv_scales is not None,
    )
    operands = [q, kv_pages.reshape(-1, *kv_pages.shape[2:]), page_table]
    operands += [array.astype(jnp.float32) for array in (sinks, alibi_slopes, kv_scales) if array is not None]
    cutting: Any = {"block_tokens": blocks.block_tokens, "window": window}
    rows = make_rows(offsets, starts, places=places, **cutting)

    shares, parts = share_out(rows, few)
    states = _call(
        functools.partial(kernel, settings=settings),
        [*shares, *operands],
        [jax.ShapeDtypeStruct((few.states, *shape), jnp.float32) for shape in (q.shape[1:], (heads,), (heads,))],
        grid=(kv_heads, few.shares),
    )
    (result,) = _call(
        combine, [*parts, *states], [jax.ShapeDtypeStruct(q.shape, q.dtype)], grid=(heads, rows.place.size)
    )
    if many is None:
        return result
    tiles = cut(rows, many, longer_than=few.places, **cutting)
    operands = [*tiles, *operands, result]
    (result,) = _call(
        functools.partial(kernel, settings=dataclasses.replace(settings, sizes=(many.size,), shared=False)),
        operands,
        [jax.ShapeDtypeStruct(q.shape, q.dtype)],
        grid=(kv_heads, many.tiles),
        warps=many.warps,
        aliases={len(operands) - 1: 0},
    )
    return result


def _call(
    body: Callable[..., None],
    operands: Sequence[jax.Array],
    results: Sequence[jax.ShapeDtypeStruct],
    *,
    grid: tuple[int, ...],
    warps: int = 4,
    aliases: Mapping[int, int] | None = None,
) -> Sequence[jax.Array]:
    called: Sequence[jax.Array] = pl.pallas_call(
        body,
        out_shape=results,
        grid=grid,
        input_output_aliases=aliases or {},
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=STAGES),
        interpret=interpreted(),
        name="paged_attention",
    )(*operands)
    return called
