"""Rows cut into tiles: the unit that the XLA path computes, whatever the shape of the step."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Tiling(NamedTuple):
    """How rows are cut: tiles of `places` tokens, `together` of them at a time, `queries` per tile and KV head."""

    places: int
    together: int
    queries: int


class Tiles(NamedTuple):
    """One entry per tile, those with most blocks first, so that tiles computed together end together.

    Query `m` of a KV head is the token at place `m % places` for its query head `m // places`; the entries that fill up to
    `queries` repeat the last one.
    """

    queries: jax.Array  # [tiles, K, queries, H]
    row: jax.Array
    start: jax.Array  # position of the first token
    end: jax.Array  # position after the last one; 0 for a tile of padding
    first_block: jax.Array
    num_blocks: jax.Array


def cut(
    q: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    tiling: Tiling,
    *,
    kv_heads: int,
    block_tokens: int,
    window: int | None,
) -> tuple[Tiles, jax.Array]:
    """Cut `q [B, S, N, H]` into tiles, a multiple of `together` in number; also return where each tile of each row went."""
    rows, places, heads, head_size = q.shape
    per_row = -(-places // tiling.places)
    group = heads // kv_heads
    q = jnp.pad(q, ((0, 0), (0, per_row * tiling.places - places), (0, 0), (0, 0)))
    queries = q.reshape(rows * per_row, tiling.places, kv_heads, group, head_size).transpose(0, 2, 3, 1, 4)
    queries = queries.reshape(rows * per_row, kv_heads, group * tiling.places, head_size)
    queries = jnp.pad(queries, ((0, 0), (0, 0), (0, tiling.queries - queries.shape[2]), (0, 0)), mode="edge")

    before = jnp.arange(per_row, dtype=jnp.int32) * tiling.places
    start = (starts[:, None] + before).reshape(-1)
    tokens = jnp.clip(lengths[:, None] - before, 0, tiling.places).reshape(-1)
    end = jnp.where(tokens > 0, start + tokens, 0)
    lowest = jnp.zeros_like(start) if window is None else jnp.maximum(start - window + 1, 0)
    first_block = lowest // block_tokens
    num_blocks = jnp.maximum(-(-end // block_tokens) - first_block, 0)
    row = jnp.repeat(jnp.arange(rows, dtype=jnp.int32), per_row)
    tiles = Tiles(queries, row, start, end, first_block, num_blocks)

    missing = -(rows * per_row) % tiling.together
    tiles = Tiles(*(jnp.pad(array, ((0, missing), *((0, 0),) * (array.ndim - 1))) for array in tiles))
    count = rows * per_row + missing
    if count == tiling.together:
        return tiles, jnp.arange(rows * per_row, dtype=jnp.int32)
    order = jnp.argsort(-tiles.num_blocks).astype(jnp.int32)
    went_to = jnp.zeros(count, jnp.int32).at[order].set(jnp.arange(count, dtype=jnp.int32))
    return Tiles(*(array[order] for array in tiles)), went_to[: rows * per_row]


def join(results: jax.Array, went_to: jax.Array, tiling: Tiling, *, like: jax.Array) -> jax.Array:
    """The results `[tiles, K, queries, H]` of `cut`'s tiles, put together in the shape and dtype of the queries."""
    rows, places, heads, head_size = like.shape
    kv_heads = results.shape[1]
    group = heads // kv_heads
    results = results[went_to, :, : group * tiling.places]
    results = results.reshape(rows, -1, kv_heads, group, tiling.places, head_size).transpose(0, 1, 4, 2, 3, 5)
    return results.reshape(rows, -1, heads, head_size)[:, :places].astype(like.dtype)
