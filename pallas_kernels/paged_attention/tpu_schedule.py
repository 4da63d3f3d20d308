"""What the TPU kernel does and in which order, as scalars: computed by XLA, read by the kernel from its scalar memory."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Schedule(NamedTuple):
    """Tiles of rows, in order; int32. All but `pages` and `first` have one entry per tile and one more, of an empty tile.

    Blocks lie at fixed positions of the sequence, so that a token's sums do not depend on how its row was cut.
    """

    pages: jax.Array  # [B * P], the page table
    row: jax.Array
    start: jax.Array  # position of the tile's first token
    end: jax.Array  # position after its last one; 0 for a tile without tokens
    low: jax.Array  # the first position that any of its tokens sees
    buffer: jax.Array  # which of the two buffers holds its first block
    follow: jax.Array  # the next tile with tokens on the same core
    first: jax.Array  # [cores], each core's first tile with tokens


def make_schedule(
    page_table: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    *,
    tile_places: int,
    tiles_per_row: int,
    num_tiles: int,
    block_tokens: int,
    window: int | None,
    cores: int,
) -> Schedule:
    """Cut rows into tiles of `tile_places`; tiles from `B * tiles_per_row` up to `num_tiles` fill the grid up."""
    rows = starts.shape[0]
    spare = num_tiles + 1 - rows * tiles_per_row
    before = jnp.arange(tiles_per_row, dtype=jnp.int32) * tile_places
    tokens = jnp.clip(lengths[:, None] - before, 0, tile_places).reshape(-1)
    start = jnp.where(tokens > 0, (starts[:, None] + before).reshape(-1), 0)
    low = jnp.zeros_like(start) if window is None else jnp.maximum(start - window + 1, 0)
    row = jnp.repeat(jnp.arange(rows, dtype=jnp.int32), tiles_per_row)
    row, start, low, end = (jnp.pad(array, (0, spare)) for array in (row, start, low, start + tokens))

    blocks = -(-end // block_tokens) - low // block_tokens
    buffer = (jnp.cumsum(blocks) - blocks) % 2
    tile = jnp.arange(num_tiles, dtype=jnp.int32)
    busy = jnp.where(blocks[:-1] > 0, tile, num_tiles).reshape(cores, -1)
    busy = jnp.pad(busy, ((0, 0), (0, 1)), constant_values=num_tiles)
    at_or_after = lax.cummin(busy, axis=1, reverse=True)
    follow = jnp.pad(at_or_after[:, 1:].reshape(-1), (0, 1), constant_values=num_tiles)
    return Schedule(page_table.reshape(-1), row, start, end, low, buffer.astype(jnp.int32), follow, at_or_after[:, 0])
