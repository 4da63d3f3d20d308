"""Writing latent vectors on a TPU, where words are shared by four tokens of 8 bits or two of 16: tiles are read and written back.

XLA's scatter would lay out the whole pool anew for 8 bits. That of larger types writes in place (`check.pool_moves` reads it
from the program), but one token after the other: many in bfloat16 are the kernel's, which copies a tile that a prompt fills.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.storage import HALF, HELD_AS_BITS, LANES, QUANTISED, SUBLANES, to_storage
from pallas_kernels.tpu.chip import NO_TPU, target_chip
from pallas_kernels.write_latents import xla

PLACES = 256
"""Tokens of one step of the grid, at most."""
TOGETHER = 32
"""Tiles that are on their way at a time."""
MANY_TOKENS = 512
"""From so many of 16 bits on the kernel writes them."""


def supports(pages: Any, latents: Any, slots: Any, *, kv_dtype: DTypeLike) -> str | None:
    """None, or why not."""
    if _leaves_to_xla(slots, kv_dtype):
        return xla.supports(pages, kv_dtype=kv_dtype)
    if jnp.dtype(pages.dtype) in HELD_AS_BITS:
        return f"pages are {pages.dtype} bits, which only the CPU needs"
    chip = target_chip()
    if chip is None:
        return NO_TPU
    tile = _tile(pages)
    if pages.shape[3] % LANES or pages.shape[2] % tile:
        return (
            f"pages of {tuple(pages.shape[1:])} in {pages.dtype} do not fill a TPU's tiles: allocate pages of "
            f"latent_page_shape(..., platform='tpu'), of a multiple of {tile} tokens"
        )
    most = chip.smem_bytes // 2 // 4
    if slots.shape[0] > most:
        return f"{slots.shape[0]} tokens in one step; the scalar memory holds the slots of {most}"
    return None


def write_latents(pages: jax.Array, latents: jax.Array, slots: jax.Array, *, kv_dtype: DTypeLike) -> jax.Array:
    """See the op's contract."""
    if _leaves_to_xla(slots, kv_dtype):
        return xla.write_latents(pages, latents, slots, kv_dtype=kv_dtype)
    (page_tokens, width), tile = pages.shape[2:], _tile(pages)
    places = min(PLACES, -(-latents.shape[0] // SUBLANES) * SUBLANES)
    missing = -latents.shape[0] % places
    slots = jnp.pad(slots, (0, missing))  # to the sink
    padded = jnp.pad(latents, ((0, missing), (0, width - latents.shape[1])))
    stored = to_storage(padded, storage=pages.dtype, kv_dtype=kv_dtype)
    bits = jnp.uint8 if stored.dtype.itemsize == 1 else jnp.uint16
    tokens = lax.bitcast_convert_type(stored, bits).astype(jnp.uint32)
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    tiles = pages.reshape(-1, tile, width)
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
                pltpu.VMEM((TOGETHER, tile, width), pages.dtype),
                pltpu.VMEM((max(1, places // tile), tile, width), pages.dtype),
                pltpu.SemaphoreType.DMA((TOGETHER,)),
                *[pltpu.SemaphoreType.DMA] * 2,
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(tiles.shape, tiles.dtype),
        input_output_aliases={2: 0},
        name="write_latents",
    )(slots, tokens, tiles)
    return written.reshape(pages.shape)


def _leaves_to_xla(slots: Any, kv_dtype: DTypeLike) -> bool:
    dtype = jnp.dtype(kv_dtype)
    return dtype not in QUANTISED and not (dtype == HALF and len(slots) >= MANY_TOKENS)


def _tile(pages: Any) -> int:
    """Tokens of a whole number of words in all of a vector's sublanes."""
    return SUBLANES * 4 // int(pages.dtype.itemsize)


def _kernel(
    slots: Any,
    tokens: Any,
    _: Any,
    pool: Any,
    firsts: Any,
    ends: Any,
    batches: Any,
    held: Any,
    filled: Any,
    arrived: Any,
    left: Any,
    filled_left: Any,
    *,
    sink_slots: int,
) -> None:
    """Some places: neighbours of one tile are a group, and groups of different tiles a batch, whose copies overlap.

    `firsts` and `ends` are the places of each group, `batches` the first group of each. Tiles that neighbours of 16 bits fill are
    written at once. The sink is not written.
    """
    begin, tile_tokens = pl.program_id(0) * tokens.shape[0], pool.shape[1]
    share = tile_tokens // SUBLANES

    def tile_of(place: jax.Array) -> jax.Array:
        return slots[begin + place] // tile_tokens

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

    def fills(place: jax.Array) -> jax.Array:
        """Whether the tokens from a place on are a tile's."""
        first = slots[begin + place]
        fits = (first % tile_tokens == 0) & (first >= sink_slots) & (place + tile_tokens <= tokens.shape[0])

        def follow() -> jax.Array:
            found = jnp.bool_(True)
            for offset in range(1, tile_tokens):
                found &= slots[begin + place + offset] == first + offset
            return found

        return lax.cond(fits, follow, lambda: jnp.bool_(False))

    def filling(tile: jax.Array, number: jax.Array) -> Any:
        return pltpu.make_async_copy(filled.at[number], pool.at[tile], filled_left)

    def fill(place: jax.Array, number: jax.Array) -> None:
        some = tile_tokens + SUBLANES  # loads are of whole vectors
        first = jnp.minimum(place // SUBLANES * SUBLANES, tokens.shape[0] - some)
        words = tokens[pl.ds(pl.multiple_of(first, SUBLANES), some)]
        words = pltpu.roll(words, (first - place) % some, 0)[:tile_tokens]
        filled[number] = pltpu.bitcast(words << 16, jnp.float32).astype(filled.dtype)
        filling(tile_of(place), number).start()

    def step(carried: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        place, groups, count, number = carried
        whole = fills(place) if share == 2 else jnp.bool_(False)
        pl.when(whole)(lambda: fill(place, number))
        groups, count = lax.cond(whole, lambda: (groups, count), lambda: note(place, (groups, count)))
        return place + jnp.where(whole, tile_tokens, 1), groups, count, number + whole.astype(jnp.int32)

    none = (jnp.int32(0),) * 4
    _, groups, count, number = lax.while_loop(lambda carried: carried[0] < tokens.shape[0], step, none)

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
            token, bits = slots[begin + place] % tile_tokens, 32 // share
            shift = (token % share * bits).astype(jnp.uint32)
            here = lax.broadcasted_iota(jnp.int32, words.shape, 0) == token // share
            others = words & ~(jnp.uint32((1 << bits) - 1) << shift)
            return jnp.where(here, others | tokens[pl.ds(place, 1)] << shift, words)

        lax.fori_loop(first, end, lambda group, _: reading(group).start(), None)
        lax.fori_loop(first, end, write, None)
        lax.fori_loop(first, end, lambda group, _: writing(group).wait(), None)

    lax.fori_loop(0, count, write_batch, None)
    lax.fori_loop(0, number, lambda _, __: filling(jnp.int32(0), jnp.int32(0)).wait(), None)
