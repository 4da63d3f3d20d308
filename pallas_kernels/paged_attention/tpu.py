"""Paged attention for TPU in Pallas: which cases there are, and how they are laid out for the kernel."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.paged_attention.tpu_blocks import Blocks, choose_blocks
from pallas_kernels.paged_attention.tpu_kernel import LOG2_E, Settings, kernel
from pallas_kernels.paged_attention.tpu_schedule import Schedule, make_schedule
from pallas_kernels.storage import BITS, KV_DTYPES, LANES, stored_head_size
from pallas_kernels.tpu_chip import NO_TPU, SIMULATED, Chip, target_chip, tiles_refused

DEFAULT_VMEM_BYTES = 16 << 20
COMPUTED = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32))


def supports(
    q: Any, kv_pages: Any, page_table: Any, *args: Any, kv_dtype: DTypeLike, kv_heads: int, **options: Any
) -> str | None:
    """None, or why not."""
    if kv_dtype not in KV_DTYPES:
        return f"kv_pages of {kv_pages.dtype} are not a float cache"
    for name, dtype in (("queries", q.dtype), ("kv_pages", kv_dtype)):
        if jnp.dtype(dtype) not in COMPUTED:
            return f"{name} are {jnp.dtype(dtype)}; a TPU computes in bfloat16 and float32"
    if kv_pages.dtype == BITS:
        return "kv_pages are uint16 bits, which only the CPU needs"
    chip = target_chip()
    if chip is None:
        return NO_TPU
    refused = tiles_refused(kv_pages.shape[1:])
    if refused is not None:
        return refused
    if _blocks(chip, q, kv_pages, kv_heads) is None:
        return f"a block of pages {kv_pages.shape[1:]} and its queries do not fit {chip.vmem_bytes} bytes of VMEM"
    if page_table.shape[1] > _table_entries(chip):
        return f"{page_table.shape[1]} pages per row; the scalar memory holds {_table_entries(chip)}: use larger pages"
    return None


def paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
    alibi_slopes: jax.Array | None,
    kv_dtype: DTypeLike,
    kv_heads: int,
) -> jax.Array:
    """See the op's contract. A page table that the scalar memory does not hold is worked off in groups of rows."""
    chip = target_chip()
    assert chip is not None  # `supports` has seen to it
    rows, pages_per_row = page_table.shape
    together = max(1, _table_entries(chip) // pages_per_row)
    attend = functools.partial(
        _attend,
        chip,
        kv_pages,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        kv_heads=kv_heads,
    )
    parts = [
        attend(*(array[at : at + together] for array in (q, page_table, starts, lengths)))
        for at in range(0, rows, together)
    ]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _attend(
    chip: Chip,
    kv_pages: jax.Array,
    q: jax.Array,
    page_table: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
    alibi_slopes: jax.Array | None,
    kv_heads: int,
) -> jax.Array:
    rows, places, heads, head_size = q.shape
    page_tokens, channels, lanes = kv_pages.shape[1:]
    group = heads // kv_heads
    stored_size = stored_head_size(channels, lanes, kv_heads=kv_heads, head_size=head_size)
    blocks = _blocks(chip, q, kv_pages, kv_heads)
    assert blocks is not None  # likewise
    tiles_per_row = -(-places // blocks.places)
    steps = -(-rows * tiles_per_row // (blocks.tiles * chip.cores))
    num_tiles = chip.cores * steps * blocks.tiles
    block_tokens = blocks.pages * page_tokens
    schedule = make_schedule(
        page_table,
        starts,
        lengths,
        tile_places=blocks.places,
        tiles_per_row=tiles_per_row,
        num_tiles=num_tiles,
        block_tokens=block_tokens,
        window=window,
        cores=chip.cores,
    )
    settings = Settings(
        blocks=blocks,
        kv_heads=kv_heads,
        group=group,
        pages_per_row=page_table.shape[1],
        width=max(LANES, stored_size),
        side_by_side=stored_size < LANES,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        has_sinks=sinks is not None,
        has_slopes=alibi_slopes is not None,
        simulated=chip.name == SIMULATED,
    )
    tiles = _to_tiles(q.astype(kv_pages.dtype), settings, tiles_per_row, num_tiles)
    num_queries = tiles.shape[2]
    of_step = pl.BlockSpec((blocks.tiles, *tiles.shape[1:]), lambda core, step, *_: (core * steps + step, 0, 0, 0))
    operands, specs = [tiles, kv_pages], [of_step, pl.BlockSpec(memory_space=pl.ANY)]
    for by_head in (sinks, alibi_slopes):
        if by_head is not None:
            operands.append(_by_query(by_head, settings))
            specs.append(pl.BlockSpec(memory_space=pltpu.VMEM))
    column = pltpu.VMEM((kv_heads, num_queries, LANES), jnp.float32)
    split = pltpu.VMEM((kv_heads, block_tokens, settings.width), kv_pages.dtype)
    results = pl.pallas_call(
        functools.partial(kernel, settings=settings),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(Schedule._fields),
            grid=(chip.cores, steps),
            in_specs=specs,
            out_specs=of_step,
            scratch_shapes=[
                pltpu.VMEM((2, blocks.pages, *kv_pages.shape[1:]), kv_pages.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                column,
                column,
                pltpu.VMEM((kv_heads, num_queries, settings.width), jnp.float32),
                *([] if blocks.few else [split, split]),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(tiles.shape, tiles.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            # Eleven bundles a page, a third of all of decode at 16 tokens a page; simulated kernels are checked.
            disable_bounds_checks=True,
            # No more than it may need: the compiler prefetches weights into the rest meanwhile.
            vmem_limit_bytes=min(chip.vmem_bytes * 7 // 8, max(DEFAULT_VMEM_BYTES, 2 * blocks.vmem_bytes)),
        ),
        name="paged_attention",
    )(*schedule, *operands)
    return _from_tiles(results, settings, tiles_per_row, like=q)


def _to_tiles(q: jax.Array, settings: Settings, tiles_per_row: int, num_tiles: int) -> jax.Array:
    """`[B, S, N, H]` -> `[tiles, K, places * group, W]`, zeros beyond the head size."""
    rows, places, _, head_size = q.shape
    width = settings.width
    missing = tiles_per_row * settings.blocks.places - places
    q = jnp.pad(q, ((0, 0), (0, missing), (0, 0), (0, width - head_size)))
    q = q.reshape(rows * tiles_per_row, settings.blocks.places, settings.kv_heads, settings.group, width)
    q = q.swapaxes(1, 2).reshape(rows * tiles_per_row, settings.kv_heads, -1, width)
    return jnp.pad(q, ((0, num_tiles - q.shape[0]), (0, 0), (0, 0), (0, 0)))


def _by_query(by_head: jax.Array, settings: Settings) -> jax.Array:
    """A score of each query head `[N]`, in base 2, as a column for every query of a tile, `[K, places * group, 128]`."""
    scores = LOG2_E * by_head.astype(jnp.float32).reshape(settings.kv_heads, settings.group)
    column = jnp.tile(scores, (1, settings.blocks.places))[:, :, None]
    return jnp.broadcast_to(column, (*column.shape[:2], LANES))


def _from_tiles(results: jax.Array, settings: Settings, tiles_per_row: int, *, like: jax.Array) -> jax.Array:
    rows, places, heads, head_size = like.shape
    results = results[: rows * tiles_per_row]
    results = results.reshape(-1, settings.kv_heads, settings.blocks.places, settings.group, settings.width).swapaxes(
        1, 2
    )
    results = results.reshape(rows, -1, heads, settings.width)[:, :places]
    values_at = head_size if settings.side_by_side else 0
    return results[..., values_at : values_at + head_size].astype(like.dtype)


def _blocks(chip: Chip, q: Any, kv_pages: Any, kv_heads: int) -> Blocks | None:
    return choose_blocks(
        chip,
        rows=q.shape[0],
        places=q.shape[1],
        group=q.shape[2] // kv_heads,
        kv_heads=kv_heads,
        width=-(-q.shape[3] // LANES) * LANES,
        page=tuple(kv_pages.shape[1:]),
        itemsize=jnp.dtype(kv_pages.dtype).itemsize,
    )


def _table_entries(chip: Chip) -> int:
    """Page ids that the scalar memory holds beside the rest of the schedule."""
    return chip.smem_bytes // 2 // 4
