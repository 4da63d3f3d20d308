"""Attention within rows for TPU in Pallas: tiles of queries meet the blocks of places that their rows reach, and no others.

The keys and values of a few heads lie in VMEM while all tiles pass by, as many places of them as it has room for.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.row_attention.relative import Relative
from pallas_kernels.storage import LANES
from pallas_kernels.tpu.attention.softmax import LOG2_E, UNSEEN, accumulate, fill, product, repeat
from pallas_kernels.tpu.chip import MIB, NO_TPU, SIMULATED, Chip, target_chip

TILE, BLOCK = 512, 512
"""Places of a tile of queries, and of a block of keys and values."""
SMALLEST = (LANES, LANES)
"""What is simulated has small cases, and they are to have several tiles and blocks."""
CHUNK_BYTES = 2 * MIB
"""Of a head's keys in VMEM, at most: the places that it has room for."""
TOGETHER = 4
"""Heads that meet a block at a time: the weights of one are computed beside the products of another.

A head of 72 channels in bfloat16, whose 4,096 places see each other, takes 58.6 thousand cycles on v6e by the schedule with tiles
of 256 and two heads together, 44.7 with 512 and two, and 40.3 with 512 and four; its products take 32.8, as channels fill half of
a matrix unit. With 1,024 and two it is 40.1, and short rows waste more.
"""
SPARE_BYTES = 12 * MIB
"""Of VMEM for what is computed of a block."""


class Reached(NamedTuple):
    """Of each tile the first and the last block that any of its queries sees, and the first and the last of those that all of
    them see whole; int32 `[tiles]`. There are none where the last is before the first."""

    first: jax.Array
    last: jax.Array
    whole_first: jax.Array
    whole_last: jax.Array


@dataclass(frozen=True)
class _Settings:
    """`group` query heads share a KV head. A chunk is so many `blocks` of `block` places, and may be all there are."""

    scale: float
    group: int
    tile: int
    block: int
    blocks: int
    holds_all: bool
    spare_columns: bool


def supports(q: Any, *args: Any, relative: Relative | None, **options: Any) -> str | None:
    """None, or why not."""
    if relative is not None:
        return "the TPU kernel adds nothing to scores by distance"
    if q.dtype not in (jnp.bfloat16, jnp.float32):
        return f"queries are {q.dtype}; the TPU kernel takes bfloat16 and float32"
    return NO_TPU if target_chip() is None else None


def row_attention(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    offsets: jax.Array,
    *,
    scale: float,
    window: int | None,
    relative: Relative | None,
) -> jax.Array:
    """See the op's contract. Memory: queries, keys, values and results by head."""
    chip = target_chip()
    assert chip is not None
    places, heads, head_size = q.shape
    kv_heads, width = keys.shape[1], -(-head_size // LANES) * LANES
    group, together = heads // kv_heads, math.gcd(kv_heads, max(1, TOGETHER * kv_heads // heads))
    tile, block = _sizes(chip, places, together * group)
    padded = -(-places // block) * block
    blocks = padded // block
    chunk = min(blocks, max(1, CHUNK_BYTES // (block * width * q.dtype.itemsize)))
    chunks = -(-blocks // chunk)
    settings = _Settings(
        scale=scale * LOG2_E,
        group=group,
        tile=tile,
        block=block,
        blocks=chunk,
        holds_all=chunks == 1,
        spare_columns=-width % chip.matrix_columns >= LANES,
    )
    low, high = _seen(offsets, padded, window)
    tiles = _reached(low, high, tile=tile, block=block)
    real = (jnp.arange(places) < offsets[-1])[:, None, None]

    def by_head(x: jax.Array, total: int) -> jax.Array:
        kept = jnp.where(real, x, jnp.zeros((), x.dtype))
        spread = jnp.pad(kept, ((0, total - places), (0, 0), (0, width - head_size)))
        return spread.transpose(1, 0, 2)

    def in_blocks(x: jax.Array) -> jax.Array:
        return by_head(x, chunks * chunk * block).reshape(kv_heads, chunks * chunk, block, width)

    def of_keys(head: Any, tile: Any, step: Any, first: Any, last: Any, *_: Any) -> tuple[Any, ...]:
        at = 0 if chunks == 1 else jnp.clip(first[tile] // chunk + step, 0, jnp.maximum(last[tile], 0) // chunk)
        return head, at, 0, 0

    def of_tile(head: Any, tile: Any, step: Any, *_: Any) -> tuple[Any, ...]:
        return head, tile, 0

    def of_places(head: Any, tile: Any, step: Any, *_: Any) -> tuple[Any, ...]:
        return tile, 0

    queries = together * group
    held = pl.BlockSpec((together, chunk, block, width), of_keys)
    bounds = pl.BlockSpec((tile, LANES), of_places)
    attended = pl.pallas_call(
        functools.partial(_kernel, settings=settings),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(tiles),
            grid=(kv_heads // together, padded // tile, chunks),
            in_specs=[bounds, bounds, pl.BlockSpec((queries, tile, width), of_tile), held, held],
            out_specs=pl.BlockSpec((queries, tile, width), of_tile),
            scratch_shapes=[
                pltpu.VMEM((queries, tile, LANES), jnp.float32),
                pltpu.VMEM((queries, tile, LANES), jnp.float32),
                pltpu.VMEM((queries, tile, width), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((heads, padded, width), q.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=4 * together * chunk * block * width * q.dtype.itemsize + SPARE_BYTES,
        ),
        name="row_attention",
    )(
        *tiles,
        *(jnp.broadcast_to(bound[:, None], (padded, LANES)) for bound in (low, high)),
        by_head(q, padded),
        in_blocks(keys),
        in_blocks(values),
    )
    return jnp.where(real, attended.transpose(1, 0, 2)[:places, :, :head_size], jnp.zeros((), q.dtype))


def reached(chip: Chip, offsets: jax.Array, places: int) -> Reached:
    """What the kernel's tiles reach of so many places, where no heads share keys and there is no window."""
    tile, block = _sizes(chip, places, TOGETHER)
    return _reached(*_seen(offsets, -(-places // block) * block, None), tile=tile, block=block)


def _sizes(chip: Chip, places: int, heads: int) -> tuple[int, int]:
    """Places of a tile and of a block, where so many query heads meet it together."""
    tile, block = SMALLEST if chip.name == SIMULATED else (TILE, BLOCK)
    needed = max(LANES, 1 << (places - 1).bit_length())
    return min(tile, needed, max(LANES, tile * TOGETHER // (1 << (heads - 1).bit_length()))), min(block, needed)


def _seen(offsets: jax.Array, padded: int, window: int | None) -> tuple[jax.Array, jax.Array]:
    """The first and the last place that each sees, int32 `[padded]`; of padding none."""
    place = jnp.arange(padded, dtype=jnp.int32)
    begun = offsets <= place[:, None]  # [padded, B + 1]; gathers would take longer
    low = jnp.where(begun, offsets, 0).max(axis=1)
    high = jnp.where(begun, padded, offsets).min(axis=1) - 1
    if window is not None:
        low, high = jnp.maximum(low, place - window), jnp.minimum(high, place + window)
    real = place < offsets[-1]
    return jnp.where(real, low, padded), jnp.where(real, high, -1)


def _reached(low: jax.Array, high: jax.Array, *, tile: int, block: int) -> Reached:
    tiled = (-1, tile)
    return Reached(
        first=low.reshape(tiled).min(axis=1) // block,
        last=high.reshape(tiled).max(axis=1) // block,
        whole_first=-(-low.reshape(tiled).max(axis=1) // block),
        whole_last=(high.reshape(tiled).min(axis=1) + 1) // block - 1,
    )


def _kernel(
    first: Any,
    last: Any,
    whole_first: Any,
    whole_last: Any,
    lows: Any,
    highs: Any,
    queries: Any,
    keys: Any,
    values: Any,
    results: Any,
    largest: Any,
    total: Any,
    mixed: Any,
    *,
    settings: _Settings,
) -> None:
    """One tile of a few heads and one chunk; a tile's chunks follow each other from the first that it reaches."""
    tile, step = pl.program_id(1), pl.program_id(2)
    begin = 0 if settings.holds_all else (first[tile] // settings.blocks + step) * settings.blocks
    heads = range(queries.shape[0])

    @pl.when(step == 0)
    def _() -> None:
        fill(largest, UNSEEN)
        fill(total, 0.0)
        fill(mixed, 0.0)

    def add(block: Any, *, masked: bool) -> None:
        at = block - begin

        def scores_of(head: int) -> jax.Array:
            return product(queries[head], keys[head // settings.group, at], axis=1) * settings.scale

        # All scores first: the compiler overlaps the weights of one head with the products of another only if they stand so.
        scores = [scores_of(head) for head in heads]
        if masked:
            place = lax.broadcasted_iota(jnp.int32, (settings.tile, settings.block), 1) + block * settings.block
            seen = (place >= repeat(lows[...], settings.block)) & (place <= repeat(highs[...], settings.block))
            scores = [jnp.where(seen, of, -math.inf) for of in scores]
        for head in heads:
            state = (of.at[head] for of in (largest, total, mixed))
            accumulate(scores[head], values[head // settings.group, at], *state, spare_columns=settings.spare_columns)

    def meet(block: Any, _: None) -> None:
        whole = (block >= whole_first[tile]) & (block <= whole_last[tile])
        pl.when(whole)(lambda: add(block, masked=False))
        pl.when(jnp.logical_not(whole))(lambda: add(block, masked=True))

    until = jnp.minimum(last[tile] + 1, begin + settings.blocks)
    lax.fori_loop(jnp.maximum(first[tile], begin), until, meet, None)

    @pl.when(step == pl.num_programs(2) - 1)
    def _() -> None:
        for head in heads:
            results[head] = (mixed[head] / repeat(total[head], mixed.shape[2])).astype(results.dtype)
