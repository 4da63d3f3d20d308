"""Attention within rows for TPU in Pallas: tiles of places meet the blocks of places that their rows reach, and no others."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.row_attention.relative import Relative
from pallas_kernels.storage import LANES, SUBLANES
from pallas_kernels.tpu.attention.softmax import LOG2_E, UNSEEN, accumulate, fill, product, repeat
from pallas_kernels.tpu.chip import NO_TPU, target_chip

TILE = 128
"""Places of a tile of queries, and of a block of keys and values."""


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
    places, heads, head_size = q.shape
    kv_heads = keys.shape[1]
    padded, width = -(-places // TILE) * TILE, -(-head_size // LANES) * LANES
    tiles = padded // TILE
    place = jnp.arange(padded, dtype=jnp.int32)
    row = jnp.sum(
        place[:, None] >= offsets[None, 1:], axis=1, dtype=jnp.int32
    )  # padding has a row of its own, the last
    first, last = _blocks(offsets, place, row, padded, window)

    def by_head(x: jax.Array) -> jax.Array:
        kept = jnp.where((jnp.arange(places) < offsets[-1])[:, None, None], x, jnp.zeros((), x.dtype))
        spread = jnp.pad(kept, ((0, padded - places), (0, 0), (0, width - head_size)))
        return spread.transpose(1, 0, 2)

    def block(head: Any, tile: Any, step: Any, first: Any, last: Any) -> tuple[Any, Any, int]:
        return head // (heads // kv_heads), jnp.minimum(first[tile] + step, last[tile]), 0

    def tile_of(head: Any, tile: Any, step: Any, first: Any, last: Any) -> tuple[Any, Any, int]:
        return head, tile, 0

    of_keys = pl.BlockSpec((None, TILE, width), block)
    attended = pl.pallas_call(
        functools.partial(_kernel, scale=scale * LOG2_E, window=window),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(heads, tiles, tiles),
            in_specs=[
                pl.BlockSpec((TILE, LANES), lambda head, tile, step, first, last: (tile, 0)),
                pl.BlockSpec(
                    (SUBLANES, TILE),
                    lambda head, tile, step, first, last: (0, jnp.minimum(first[tile] + step, last[tile])),
                ),
                pl.BlockSpec((None, TILE, width), tile_of),
                of_keys,
                of_keys,
            ],
            out_specs=pl.BlockSpec((None, TILE, width), tile_of),
            scratch_shapes=[
                pltpu.VMEM((TILE, LANES), jnp.float32),
                pltpu.VMEM((TILE, LANES), jnp.float32),
                pltpu.VMEM((TILE, width), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((heads, padded, width), q.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        name="row_attention",
    )(
        first,
        last,
        jnp.broadcast_to(row[:, None], (padded, LANES)),
        jnp.broadcast_to(row[None], (SUBLANES, padded)),
        by_head(q),
        by_head(keys),
        by_head(values),
    )
    real = (jnp.arange(places) < offsets[-1])[:, None, None]
    return jnp.where(real, attended.transpose(1, 0, 2)[:places, :, :head_size], jnp.zeros((), q.dtype))


def _blocks(
    offsets: jax.Array, place: jax.Array, row: jax.Array, padded: int, window: int | None
) -> tuple[jax.Array, jax.Array]:
    """The first and the last block of keys that any query of each tile sees, int32 `[tiles]`."""
    begins = jnp.concatenate([offsets, jnp.full(1, padded, jnp.int32)])
    low, high = jnp.take(begins, row, mode="clip"), jnp.take(begins, row + 1, mode="clip") - 1
    if window is not None:
        low, high = jnp.maximum(low, place - window), jnp.minimum(high, place + window)
    tiled = (-1, TILE)
    return low.reshape(tiled).min(axis=1) // TILE, high.reshape(tiled).max(axis=1) // TILE


def _kernel(
    first: Any,
    last: Any,
    query_rows: Any,
    key_rows: Any,
    queries: Any,
    keys: Any,
    values: Any,
    results: Any,
    largest: Any,
    total: Any,
    mixed: Any,
    *,
    scale: float,
    window: int | None,
) -> None:
    """One tile of a head and one block: blocks behind the last that the tile sees are passed over, and not fetched."""
    tile, step = pl.program_id(1), pl.program_id(2)
    block = first[tile] + step

    @pl.when(step == 0)
    def _() -> None:
        fill(largest, UNSEEN)
        fill(total, 0.0)
        fill(mixed, 0.0)

    @pl.when(block <= last[tile])
    def _() -> None:
        scores = product(queries[...], keys[...], axis=1) * scale
        seen = repeat(query_rows[...], TILE) == key_rows[:1]
        if window is not None:
            places = lax.broadcasted_iota(jnp.int32, scores.shape, 1) - lax.broadcasted_iota(jnp.int32, scores.shape, 0)
            seen &= jnp.abs(places + (block - tile) * TILE) <= window
        accumulate(jnp.where(seen, scores, -math.inf), values[...], largest, total, mixed)

    @pl.when(step == pl.num_programs(2) - 1)
    def _() -> None:
        results[...] = (mixed[...] / repeat(total[...], mixed.shape[1])).astype(results.dtype)
