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
from pallas_kernels.storage import HELD_AS_BITS, LANES, QUANTISED, stored_head_size
from pallas_kernels.tpu_chip import NO_TPU, SIMULATED, Chip, target_chip, tiles_refused

DEFAULT_VMEM_BYTES = 16 << 20
COMPUTED = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32))


def supports(
    q: Any, kv_pages: Any, page_table: Any, *args: Any, kv_dtype: DTypeLike, kv_heads: int, **options: Any
) -> str | None:
    """None, or why not."""
    if jnp.dtype(kv_pages.dtype) in HELD_AS_BITS:
        return f"kv_pages are {kv_pages.dtype} bits, which only the CPU needs"
    for name, dtype, allowed in (("queries", q.dtype, COMPUTED), ("kv_pages", kv_dtype, (*COMPUTED, *QUANTISED))):
        if jnp.dtype(dtype) not in allowed:
            return f"{name} are {jnp.dtype(dtype)}; the TPU kernel takes {', '.join(map(str, allowed))}"
    chip = target_chip()
    if chip is None:
        return NO_TPU
    refused = tiles_refused(kv_pages)
    if refused is not None:
        return refused
    if blocks_for(chip, q, kv_pages, kv_heads) is None:
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
    kv_scales: jax.Array | None,
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
        kv_scales=kv_scales,
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
    kv_scales: jax.Array | None,
    kv_heads: int,
) -> jax.Array:
    rows, places, heads, head_size = q.shape
    page_tokens, channels, lanes = kv_pages.shape[1:]
    group = heads // kv_heads
    stored_size = stored_head_size(channels, lanes, kv_heads=kv_heads, head_size=head_size)
    blocks = blocks_for(chip, q, kv_pages, kv_heads)
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
        has_scales=kv_scales is not None,
        simulated=chip.name == SIMULATED,
    )
    computed = _computed(kv_pages)
    tiles = _to_tiles(q.astype(computed), settings, tiles_per_row, num_tiles)
    num_queries = blocks.places * group
    results_shape = (num_tiles * blocks.places, heads * settings.width) if settings.flat else tiles.shape
    queries_of_step = _of_step(tiles.shape, chip.cores, steps, axis=1 if settings.flat else 0)
    operands, specs = [tiles, kv_pages], [queries_of_step, pl.BlockSpec(memory_space=pl.ANY)]
    for by_head in (sinks, alibi_slopes):
        if by_head is not None:
            operands.append(_by_query(by_head, settings))
            specs.append(pl.BlockSpec(memory_space=pltpu.VMEM))
    if kv_scales is not None:
        operands.append(kv_scales)
        specs.append(pl.BlockSpec(memory_space=pltpu.SMEM))
    column = pltpu.VMEM((kv_heads, num_queries, LANES), jnp.float32)
    split = pltpu.VMEM((kv_heads, block_tokens, settings.width), computed)
    results = pl.pallas_call(
        functools.partial(kernel, settings=settings),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(Schedule._fields),
            grid=(chip.cores, steps),
            in_specs=specs,
            out_specs=_of_step(results_shape, chip.cores, steps, axis=0),
            scratch_shapes=[
                pltpu.VMEM((2, blocks.pages, *kv_pages.shape[1:]), kv_pages.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                column,
                column,
                pltpu.VMEM((kv_heads, num_queries, settings.width), jnp.float32),
                *([] if blocks.few else [split, split]),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(results_shape, tiles.dtype),
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


def _of_step(shape: tuple[int, ...], cores: int, steps: int, *, axis: int) -> pl.BlockSpec:
    """Every grid step has its part of `axis`."""
    part = (*shape[:axis], shape[axis] // (cores * steps), *shape[axis + 1 :])
    return pl.BlockSpec(
        part, lambda core, step, *_: tuple((core * steps + step) * (at == axis) for at in range(len(shape)))
    )


def _to_tiles(q: jax.Array, settings: Settings, tiles_per_row: int, num_tiles: int) -> jax.Array:
    """`[B, S, N, H]` -> `[tiles, K, group * places, W]`, or flat `[N, tiles * places, W]`; zeros beyond the head size."""
    rows, places, heads, head_size = q.shape
    of_tile, width = settings.blocks.places, settings.width
    q = jnp.pad(q, ((0, 0), (0, tiles_per_row * of_tile - places), (0, 0), (0, width - head_size)))
    if settings.flat:
        q = q.reshape(-1, heads, width).swapaxes(0, 1)
        return jnp.pad(q, ((0, 0), (0, num_tiles * of_tile - q.shape[1]), (0, 0)))
    q = q.reshape(rows * tiles_per_row, of_tile, heads, width).swapaxes(1, 2)
    q = q.reshape(rows * tiles_per_row, settings.kv_heads, -1, width)
    return jnp.pad(q, ((0, num_tiles - q.shape[0]), (0, 0), (0, 0), (0, 0)))


def _by_query(by_head: jax.Array, settings: Settings) -> jax.Array:
    """A score of each query head `[N]`, in base 2, as a column for every query of a tile, `[K, group * places, 128]`."""
    scores = LOG2_E * by_head.astype(jnp.float32).reshape(settings.kv_heads, settings.group)
    column = jnp.repeat(scores, settings.blocks.places, axis=1)[:, :, None]
    return jnp.broadcast_to(column, (*column.shape[:2], LANES))


def _from_tiles(results: jax.Array, settings: Settings, tiles_per_row: int, *, like: jax.Array) -> jax.Array:
    rows, places, heads, head_size = like.shape
    if not settings.flat:
        results = results.reshape(-1, heads, settings.blocks.places, settings.width).swapaxes(1, 2)
    results = results.reshape(-1, tiles_per_row * settings.blocks.places, heads, settings.width)[:rows, :places]
    values_at = head_size if settings.side_by_side else 0
    return results[..., values_at : values_at + head_size].astype(like.dtype)


def blocks_for(chip: Chip, q: Any, kv_pages: Any, kv_heads: int) -> Blocks | None:
    """How the work is cut for these arguments, or None if nothing fits."""
    return choose_blocks(
        chip,
        rows=q.shape[0],
        places=q.shape[1],
        group=q.shape[2] // kv_heads,
        kv_heads=kv_heads,
        width=-(-q.shape[3] // LANES) * LANES,
        page=tuple(kv_pages.shape[1:]),
        itemsize=jnp.dtype(kv_pages.dtype).itemsize,
        computed_itemsize=_computed(kv_pages).itemsize,
    )


def _computed(kv_pages: Any) -> Any:
    """The type of the products' operands."""
    dtype = jnp.dtype(kv_pages.dtype)
    return jnp.dtype(jnp.bfloat16) if dtype in QUANTISED else dtype


def _table_entries(chip: Chip) -> int:
    """Page ids that the scalar memory holds beside the rest of the schedule."""
    return chip.smem_bytes // 2 // 4
