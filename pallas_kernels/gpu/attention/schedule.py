"""What the programs of the GPU kernel do, as scalars: computed by XLA from the rows, the same for every layer of a step."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.gpu.attention.blocks import Few, Many


class Rows(NamedTuple):
    """The rows and after them the padding, as one more row that sees nothing; int32 `[B + 1]`."""

    place: jax.Array  # the first one
    places: jax.Array  # how many
    start: jax.Array  # position of the first token
    end: jax.Array  # position after the last token; 0 of padding
    first_block: jax.Array  # of positions that any token sees
    num_blocks: jax.Array


class Shares(NamedTuple):
    """A tile of a row's places and a share of the blocks that it sees, one for each program of a KV head; int32.

    Results go to `to`, `to + 1` and so on. Those without places have nothing to do.
    """

    row: jax.Array
    place: jax.Array
    places: jax.Array
    start: jax.Array
    end: jax.Array
    begin: jax.Array  # the first block
    stop: jax.Array  # after the last one
    to: jax.Array


class Parts(NamedTuple):
    """Of which states each row is made: `number` for each of its places, which begin at `at`; int32 `[B + 1]`."""

    place: jax.Array
    places: jax.Array
    number: jax.Array
    at: jax.Array


def make_rows(offsets: jax.Array, starts: jax.Array, *, places: int, block_tokens: int, window: int | None) -> Rows:
    """The rows of a step of `places`."""
    own = jnp.diff(offsets, append=places)
    start = jnp.pad(starts, (0, 1))
    sees = (own > 0) & (jnp.arange(own.size) < starts.size)
    end = jnp.where(sees, start + own, 0)
    return Rows(offsets, own, start, end, *_blocks(start, end, block_tokens, window))


def share_out(rows: Rows, few: Few) -> tuple[Shares, Parts]:
    """Short rows are whole tiles; their contexts are cut into shares that are about as long, so that none is waited for."""
    places = jnp.where(rows.places <= few.places, rows.places, 0)
    num_blocks = jnp.where(places > 0, rows.num_blocks, 0)
    share = jnp.maximum(few.share_blocks, -(-num_blocks.sum() // few.wanted))
    number = -(-num_blocks // share)
    after = jnp.cumsum(number * places)
    parts = Parts(rows.place, places, number, after - number * places)
    row, index, exists = _expand(number, few.shares)
    begin = rows.first_block[row] + index * share
    shares = Shares(
        row,
        rows.place[row],
        jnp.where(exists, places[row], 0),
        rows.start[row],
        rows.end[row],
        begin,
        jnp.minimum(begin + share, (rows.first_block + rows.num_blocks)[row]),
        parts.at[row] + index * places[row],
    )
    return shares, parts


def cut(rows: Rows, many: Many, *, longer_than: int, block_tokens: int, window: int | None) -> Shares:
    """Long rows are cut into tiles that see all of their contexts. The last ones see most: they are to begin first."""
    number = jnp.where(rows.places > longer_than, -(-rows.places // many.places), 0)
    row, index, exists = (array[::-1] for array in _expand(number, many.tiles))
    before = index * many.places
    places = jnp.where(exists, jnp.minimum(rows.places[row] - before, many.places), 0)
    place, start = rows.place[row] + before, rows.start[row] + before
    end = jnp.where(rows.end[row] > 0, start + places, 0)
    first_block, num_blocks = _blocks(start, end, block_tokens, window)
    return Shares(row, place, places, start, end, first_block, first_block + num_blocks, place)


def _blocks(start: jax.Array, end: jax.Array, block_tokens: int, window: int | None) -> tuple[jax.Array, jax.Array]:
    """The first block that any of the tokens at `start .. end` sees, and how many there are."""
    low = jnp.zeros_like(start) if window is None else jnp.maximum(start - window + 1, 0)
    first_block = low // block_tokens
    return first_block, jnp.maximum(-(-end // block_tokens) - first_block, 0)


def _expand(number: jax.Array, most: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`number[i]` entries for each row `i`, one row after the other: their rows, their indices in the row, and which exist."""
    after = jnp.cumsum(number)
    entry = jnp.arange(most, dtype=jnp.int32)
    row = jnp.minimum((after <= entry[:, None]).sum(axis=1, dtype=jnp.int32), number.size - 1)
    return row, entry - (after - number)[row], entry < after[-1]
