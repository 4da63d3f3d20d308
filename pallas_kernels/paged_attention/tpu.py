"""Paged attention for TPU in Pallas: which cases there are, and how they are laid out for the kernel."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.paged_attention.tpu_blocks import choose_blocks, heads_together, spare_columns
from pallas_kernels.paged_attention.tpu_kernel import LOG2_E, Settings, kernel
from pallas_kernels.storage import HELD_AS_BITS, LANES, QUANTISED, SUBLANES, few_channels, stored_head_size
from pallas_kernels.tpu.attention.blocks import Blocks
from pallas_kernels.tpu.attention.schedule import make_tiles
from pallas_kernels.tpu.chip import NO_TPU, SIMULATED, Chip, target_chip, tiles_refused

DEFAULT_VMEM_BYTES = 16 << 20
SPILLED_BYTES = 4 << 20
"""Over what `choose_blocks` counts: of the heads of Llama, Qwen3 and Gemma 2 v5e, v6e and tpu7x take 1.2 MiB at the most."""
ZERO_PLACES = 64
"""Places of padding that one copy clears."""
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
    """See the op's contract. A page table that the scalar memory does not hold is worked off in groups of rows."""
    chip = target_chip()
    cuts = None if chip is None else blocks_for(chip, q, kv_pages, kv_heads, window)
    assert chip is not None  # `supports` has seen to it
    assert cuts is not None  # likewise
    _, heads, head_size = q.shape
    rows, pages_per_row = page_table.shape
    stored_size = stored_head_size(*kv_pages.shape[2:], kv_heads=kv_heads, head_size=head_size)
    width = max(LANES, stored_size)
    settings = Settings(
        cuts=cuts,
        kv_heads=kv_heads,
        group=heads // kv_heads,
        pages_per_row=pages_per_row,
        width=width,
        side_by_side=stored_size < LANES,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        has_sinks=sinks is not None,
        has_slopes=alibi_slopes is not None,
        has_until=until is not None,
        has_scales=kv_scales is not None,
        continued=False,
        # Where decoding waits for the vector unit, which unpacks values, ones would cost it a twentieth: v6e, int8.
        spare_columns=spare_columns(chip, width) and jnp.dtype(kv_dtype) not in QUANTISED,
        together=heads_together(chip, width=width, kv_heads=kv_heads),
        simulated=chip.name == SIMULATED,
    )
    tokens = _to_channels(q.astype(_computed(kv_pages)), settings)
    by_head = [
        _by_query(scores, blocks.places, settings)
        for blocks in cuts
        for scores in (sinks, alibi_slopes)
        if scores is not None
    ]
    together = max(1, _table_entries(chip) // pages_per_row)
    results: jax.Array | None = None
    for at in range(0, rows, together):
        own = slice(at, at + together)
        results = _attend(
            chip,
            settings if results is None else dataclasses.replace(settings, continued=True),
            tokens,
            kv_pages,
            page_table[own],
            offsets[at : at + together + 1],
            starts[own],
            until=until,
            kv_scales=kv_scales,
            by_head=by_head,
            results=results,
        )
    assert results is not None
    return _from_channels(results, settings, like=q)


@functools.partial(jax.jit, static_argnums=(0, 1))  # the layers of a model share what takes seconds to trace
def _attend(
    chip: Chip,
    settings: Settings,
    tokens: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    *,
    until: jax.Array | None,
    kv_scales: jax.Array | None,
    by_head: list[jax.Array],
    results: jax.Array | None,
) -> jax.Array:
    """Write the results of some rows into `results`, and zeros after them."""
    tiles = make_tiles(
        offsets,
        starts,
        settings.cuts,
        tokens=tokens.shape[0],
        page_tokens=kv_pages.shape[1],
        window=settings.window,
        until=until,
        cores=chip.cores,
    )
    scalars = [page_table.reshape(-1), offsets[-1:], *tiles[:-1]]
    if until is not None:
        scalars += [tiles.stop, until]
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    operands, specs = [tokens, kv_pages], [anywhere, anywhere]
    if kv_scales is not None:
        operands.append(kv_scales)
        specs.append(pl.BlockSpec(memory_space=pltpu.SMEM))
    operands += by_head
    specs += [pl.BlockSpec(memory_space=pltpu.VMEM)] * len(by_head)
    if results is not None:
        operands.append(results)
        specs.append(anywhere)
    most_bytes = max(blocks.vmem_bytes for blocks in settings.cuts)
    call = pl.pallas_call(
        functools.partial(kernel, settings=settings),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(chip.cores,),
            in_specs=specs,
            out_specs=anywhere,
            scratch_shapes=[
                pltpu.VMEM((min(ZERO_PLACES, tokens.shape[0]), *tokens.shape[1:]), tokens.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                *[pltpu.SemaphoreType.DMA] * 3,
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(tokens.shape, tokens.dtype),
        input_output_aliases={} if results is None else {len(scalars) + len(operands) - 1: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",),
            # Eleven bundles a page, a third of all of decode at 16 tokens a page; simulated kernels are checked.
            disable_bounds_checks=True,
            # No more than it may need: the compiler prefetches weights into the rest meanwhile, 2% of a prompt's layer.
            vmem_limit_bytes=min(
                chip.vmem_bytes * 7 // 8,
                max(DEFAULT_VMEM_BYTES, SPILLED_BYTES + sum(own.nbytes for own in by_head) + most_bytes),
            ),
        ),
        name="paged_attention",
    )
    written: jax.Array = call(*scalars, *operands)
    return written


def _to_channels(q: jax.Array, settings: Settings) -> jax.Array:
    """`[N, heads, H]` -> `[N, C, 128]`, see `tpu_tokens.py`; zeros beyond the head size and in channels of padding."""
    places, heads, head_size = q.shape
    vectors = settings.width // LANES
    q = jnp.pad(q, ((0, 0), (0, 0), (0, settings.width - head_size)))
    channels = q.reshape(places, heads, vectors, LANES).swapaxes(1, 2).reshape(places, vectors * heads, LANES)
    fitting = (few for few in few_channels(q.dtype) if few >= channels.shape[1])
    count = next(fitting, -(-channels.shape[1] // SUBLANES) * SUBLANES)
    return jnp.pad(channels, ((0, 0), (0, count - channels.shape[1]), (0, 0)))


def _from_channels(results: jax.Array, settings: Settings, *, like: jax.Array) -> jax.Array:
    places, heads, head_size = like.shape
    vectors = settings.width // LANES
    results = results[:, : vectors * heads].reshape(places, vectors, heads, LANES).swapaxes(1, 2)
    values_at = head_size if settings.side_by_side else 0
    return results.reshape(places, heads, -1)[..., values_at : values_at + head_size].astype(like.dtype)


def _by_query(by_head: jax.Array, places: int, settings: Settings) -> jax.Array:
    """A score of each query head `[heads]`, in base 2, as a column for every query of a tile, `[K, group * places, 128]`."""
    scores = LOG2_E * by_head.astype(jnp.float32).reshape(settings.kv_heads, settings.group)
    column = jnp.repeat(scores, places, axis=1)[:, :, None]
    return jnp.broadcast_to(column, (*column.shape[:2], LANES))


def blocks_for(
    chip: Chip, q: Any, kv_pages: Any, kv_heads: int, window: int | None = None
) -> tuple[Blocks, ...] | None:
    """How the work is cut for these arguments, or None if nothing fits."""
    return choose_blocks(
        chip,
        tokens=q.shape[0],
        group=q.shape[1] // kv_heads,
        kv_heads=kv_heads,
        width=-(-q.shape[2] // LANES) * LANES,
        page=tuple(kv_pages.shape[1:]),
        itemsize=jnp.dtype(kv_pages.dtype).itemsize,
        computed_itemsize=_computed(kv_pages).itemsize,
        window=window,
    )


def _computed(kv_pages: Any) -> Any:
    """The type of the products' operands."""
    dtype = jnp.dtype(kv_pages.dtype)
    return jnp.dtype(jnp.bfloat16) if dtype in QUANTISED else dtype


def _table_entries(chip: Chip) -> int:
    """Page ids that the scalar memory holds beside the rest of the schedule."""
    return chip.smem_bytes // 2 // 4
