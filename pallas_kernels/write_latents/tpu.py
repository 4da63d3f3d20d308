"""Writing latent vectors on a TPU. Of 8 bits, four tokens share a word: their tiles are read, changed and written back.

XLA's scatter would lay out the whole pool anew for them. That of larger types writes in place (`pallas_kernels.check.pool_moves`
reads it from the program).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.storage import HELD_AS_BITS, LANES, PACKED_TILE, QUANTISED, SUBLANES, to_storage
from pallas_kernels.tpu.chip import NO_TPU, target_chip
from pallas_kernels.write_latents import xla

PLACES = 256
"""Tokens of one step of the grid, at most."""
TOGETHER = 32
"""Tiles that are on their way at a time."""


def supports(pages: Any, latents: Any, slots: Any, *, kv_dtype: DTypeLike) -> str | None:
    """None, or why not."""
    if jnp.dtype(kv_dtype) not in QUANTISED:
        return xla.supports(pages, kv_dtype=kv_dtype)
    if jnp.dtype(pages.dtype) in HELD_AS_BITS:
        return f"pages are {pages.dtype} bits, which only the CPU needs"
    chip = target_chip()
    if chip is None:
        return NO_TPU
    if pages.shape[3] % LANES or pages.shape[2] % PACKED_TILE:
        return (
            f"pages of {tuple(pages.shape[1:])} in {pages.dtype} do not fill a TPU's tiles: allocate pages of "
            f"latent_page_shape(..., platform='tpu'), of a multiple of {PACKED_TILE} tokens"
        )
    most = chip.smem_bytes // 2 // 4
    if slots.shape[0] > most:
        return f"{slots.shape[0]} tokens in one step; the scalar memory holds the slots of {most}"
    return None


def write_latents(pages: jax.Array, latents: jax.Array, slots: jax.Array, *, kv_dtype: DTypeLike) -> jax.Array:
    """See the op's contract."""
    if jnp.dtype(kv_dtype) not in QUANTISED:
        return xla.write_latents(pages, latents, slots, kv_dtype=kv_dtype)
    page_tokens, width = pages.shape[2:]
    places = min(PLACES, -(-latents.shape[0] // SUBLANES) * SUBLANES)
    missing = -latents.shape[0] % places
    slots = jnp.pad(slots, (0, missing))  # to the sink
    padded = jnp.pad(latents, ((0, missing), (0, width - latents.shape[1])))
    stored = to_storage(padded, storage=pages.dtype, kv_dtype=kv_dtype)
    tokens = lax.bitcast_convert_type(stored, jnp.uint8).astype(jnp.uint32)
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    tiles = pages.reshape(-1, PACKED_TILE, width)
    listed = pltpu.SMEM((places,), jnp.int32)
    written = pl.pallas_call(
        lambda *refs: _kernel(*refs, sink_slots=page_tokens),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(slots.shape[0] // places,),
            in_specs=[pl.BlockSpec((places, width), lambda step, _: (step, 0)), anywhere],
            out_specs=anywhere,
            scratch_shapes=[
                *[listed] * 3,
                pltpu.VMEM((TOGETHER, PACKED_TILE, width), pages.dtype),
                pltpu.SemaphoreType.DMA((TOGETHER,)),
                pltpu.SemaphoreType.DMA,
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(tiles.shape, tiles.dtype),
        input_output_aliases={2: 0},
        name="write_latents",
    )(slots, tokens, tiles)
    return written.reshape(pages.shape)


def _kernel(
    slots: Any,
    tokens: Any,
    _: Any,
    pool: Any,
    firsts: Any,
    ends: Any,
    batches: Any,
    held: Any,
    arrived: Any,
    left: Any,
    *,
    sink_slots: int,
) -> None:
    """Some places: neighbours of one tile are a group, and groups of different tiles a batch, whose copies overlap.

    `firsts` and `ends` are the places of each group, `batches` the first group of each. The sink is not written.
    """
    begin = pl.program_id(0) * tokens.shape[0]

    def tile_of(place: jax.Array) -> jax.Array:
        return slots[begin + place] // PACKED_TILE

    def note(place: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        groups, count = found
        tile = tile_of(place)
        real = slots[begin + place] >= sink_slots
        first = real & ((place == 0) | (tile_of(jnp.maximum(place - 1, 0)) != tile))
        open_batch = jnp.where(count > 0, batches[jnp.maximum(count - 1, 0)], 0)

        def same(group: jax.Array, met: jax.Array) -> jax.Array:
            return met | (tile_of(firsts[group]) == tile).astype(jnp.int32)

        met = lax.fori_loop(open_batch, jnp.where(first, groups, open_batch), same, jnp.int32(0))
        starts = first & ((count == 0) | (met > 0) | (groups - open_batch == TOGETHER))

        @pl.when(starts)
        def start_batch() -> None:
            batches[count] = groups

        @pl.when(first)
        def start_group() -> None:
            firsts[groups] = place

        groups, count = groups + first.astype(jnp.int32), count + starts.astype(jnp.int32)

        @pl.when(real)
        def end_group() -> None:
            ends[groups - 1] = place + 1

        return groups, count

    groups, count = lax.fori_loop(0, tokens.shape[0], note, (jnp.int32(0), jnp.int32(0)))

    def write_batch(batch: jax.Array, _: None) -> None:
        first = batches[batch]
        end = jnp.where(batch + 1 < count, batches[jnp.minimum(batch + 1, tokens.shape[0] - 1)], groups)

        def reading(group: jax.Array) -> Any:
            own = group - first
            return pltpu.make_async_copy(pool.at[tile_of(firsts[group])], held.at[own], arrived.at[own])

        def writing(group: jax.Array) -> Any:
            return pltpu.make_async_copy(held.at[group - first], pool.at[tile_of(firsts[group])], left)

        def write(group: jax.Array, _: None) -> None:
            reading(group).wait()
            words = pltpu.bitcast(held[group - first], jnp.uint32)
            changed = lax.fori_loop(firsts[group], ends[group], put, words)
            held[group - first] = pltpu.bitcast(changed, held.dtype)
            writing(group).start()

        def put(place: jax.Array, words: jax.Array) -> jax.Array:
            token = slots[begin + place] % PACKED_TILE
            shift = (token % 4 * 8).astype(jnp.uint32)
            here = lax.broadcasted_iota(jnp.int32, words.shape, 0) == token // 4
            return jnp.where(here, words & ~(jnp.uint32(255) << shift) | tokens[pl.ds(place, 1)] << shift, words)

        lax.fori_loop(first, end, lambda group, _: reading(group).start(), None)
        lax.fori_loop(first, end, write, None)
        lax.fori_loop(first, end, lambda group, _: writing(group).wait(), None)

    lax.fori_loop(0, count, write_batch, None)
