"""Latent attention for TPU in Pallas: which cases there are, and how they are laid out for the kernel."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.latent_attention.tpu_blocks import choose_blocks
from pallas_kernels.latent_attention.tpu_kernel import Settings, kernel
from pallas_kernels.latent_attention.tpu_words import (
    LEAST_PLACES,
    SHARING,
    channels_for,
    from_words,
    share_words,
    to_words,
)
from pallas_kernels.storage import HALF, HELD_AS_BITS, LANES, QUANTISED, SUBLANES
from pallas_kernels.tpu.attention.blocks import Blocks
from pallas_kernels.tpu.attention.schedule import make_tiles
from pallas_kernels.tpu.chip import MIB, NO_TPU, SIMULATED, Chip, target_chip

COMPUTED = (HALF, jnp.dtype(jnp.float32))
ZERO_BYTES = MIB // 2
"""Padding that one copy clears."""


def supports(q: Any, pages: Any, page_table: Any, *args: Any, value_size: int, **options: Any) -> str | None:
    """None, or why not."""
    if jnp.dtype(pages.dtype) in HELD_AS_BITS:
        return f"pages are {pages.dtype} bits, which only the CPU needs"
    for name, array, taken in (("queries", q, COMPUTED), ("pages", pages, (*COMPUTED, *QUANTISED))):
        if jnp.dtype(array.dtype) not in taken:
            return f"{name} are {array.dtype}; the TPU kernel takes {', '.join(map(str, taken))}"
    chip = target_chip()
    if chip is None:
        return NO_TPU
    least = SUBLANES * 4 // pages.dtype.itemsize
    if pages.shape[3] % LANES or pages.shape[2] % least:
        return (
            f"pages of {tuple(pages.shape[1:])} in {pages.dtype} do not fill a TPU's tiles: allocate pages of "
            f"latent_page_shape(..., platform='tpu'), of a multiple of {least} tokens"
        )
    if blocks_for(chip, q, pages, value_size) is None:
        return f"a block of pages {tuple(pages.shape[1:])} and its queries do not fit {chip.vmem_bytes} bytes of VMEM"
    if page_table.shape[1] > _table_entries(chip):
        return f"{page_table.shape[1]} pages per row; the scalar memory holds {_table_entries(chip)}: use larger pages"
    return None


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
    """See the op's contract. A page table that the scalar memory does not hold is worked off in groups of rows.

    Products take the cache's dtype, bfloat16 for a quantised one, which is unpacked block by block.
    """
    chip = target_chip()
    cuts = None if chip is None else blocks_for(chip, q, pages, value_size)
    assert chip is not None  # `supports` has seen to it
    assert cuts is not None  # likewise
    _, heads, size = q.shape
    rows, pages_per_row = page_table.shape
    settings = Settings(
        cuts=cuts,
        heads=_padded_heads(q, pages),
        values=_whole(value_size, LANES),
        words=share_words(heads, _compute(pages)),
        pages_per_row=pages_per_row,
        scale=scale,
        continued=False,
        simulated=chip.name == SIMULATED,
    )
    padding = ((0, 0), (0, settings.heads - heads), (0, pages.shape[3] - size))
    queries = jnp.pad(q.astype(_compute(pages)), padding)
    queries = to_words(queries) if settings.words else queries
    together = max(1, _table_entries(chip) // pages_per_row)
    results: jax.Array | None = None
    for at in range(0, rows, together):
        own = slice(at, at + together)
        results = _attend(
            chip,
            dataclasses.replace(settings, continued=results is not None),
            queries,
            pages[:, 0],
            page_table[own],
            offsets[at : at + together + 1],
            starts[own],
            results,
        )
    assert results is not None
    if settings.words:
        results = from_words(results, heads=settings.heads, width=settings.values)
    return results[:, :heads, :value_size].astype(q.dtype)


@functools.partial(jax.jit, static_argnums=(0, 1))  # the layers of a model share what takes seconds to trace
def _attend(
    chip: Chip,
    settings: Settings,
    queries: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    results: jax.Array | None,
) -> jax.Array:
    """Write the results of some rows, `[N, heads, values]` or their words, into `results`, and zeros after them."""
    places, heads, values = queries.shape[0], settings.heads, settings.values
    result = (channels_for(heads, values), LANES) if settings.words else (heads, values)
    tiles = make_tiles(
        offsets, starts, settings.cuts, tokens=places, page_tokens=pages.shape[1], window=None, cores=chip.cores
    )
    scalars = [page_table.reshape(-1), offsets[-1:], *tiles[:-1]]
    operands = [queries, pages, *([] if results is None else [results])]
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    zeros = max(1, min(places, ZERO_BYTES // (math.prod(result) * queries.dtype.itemsize)))
    call = pl.pallas_call(
        functools.partial(kernel, settings=settings),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(chip.cores,),
            in_specs=[anywhere] * len(operands),
            out_specs=anywhere,
            scratch_shapes=[
                pltpu.VMEM((zeros, *result), queries.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                *[pltpu.SemaphoreType.DMA] * 3,
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((places, *result), queries.dtype),
        input_output_aliases={} if results is None else {len(scalars) + 2: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",),
            disable_bounds_checks=True,  # as in paged_attention
            vmem_limit_bytes=min(
                chip.vmem_bytes * 7 // 8, max(16 * MIB, 2 * max(blocks.vmem_bytes for blocks in settings.cuts))
            ),
        ),
        name="latent_attention",
    )
    written: jax.Array = call(*scalars, *operands)
    return written


def blocks_for(chip: Chip, q: Any, pages: Any, value_size: int) -> tuple[Blocks, ...] | None:
    """How the work is cut for these arguments, or None if nothing fits."""
    return choose_blocks(
        chip,
        tokens=q.shape[0],
        heads=_padded_heads(q, pages),
        page=tuple(pages.shape[2:]),
        values=_whole(value_size, LANES),
        itemsize=_compute(pages).itemsize,
        stored=jnp.dtype(pages.dtype).itemsize,
        least=LEAST_PLACES if share_words(q.shape[1], _compute(pages)) else 1,
    )


def _padded_heads(q: Any, pages: Any) -> int:
    """Heads of a place in the kernel."""
    return _whole(q.shape[1], SHARING if share_words(q.shape[1], _compute(pages)) else SUBLANES)


def _compute(pages: Any) -> Any:
    """What products take."""
    return HALF if jnp.dtype(pages.dtype) in QUANTISED else jnp.dtype(pages.dtype)


def _whole(count: int, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-count // unit) * unit


def _table_entries(chip: Chip) -> int:
    """Page ids that the scalar memory holds beside the rest of the schedule."""
    return chip.smem_bytes // 2 // 4
