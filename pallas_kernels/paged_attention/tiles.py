"""Rows cut into tiles, the unit that the XLA path computes. Which tiles there are is data: code knows their lengths only."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

LONG = 128
MIDDLE_QUERIES = 64
FEW = 4
"""Fewer tokens are less work one by one than in a middle tile."""
MANY = 97
"""So many tokens, or more, are less work in a long tile than in middle ones."""


class Tiles(NamedTuple):
    """The tiles of a step: every array has a row for each of their lengths, with those of most blocks first.

    So tiles that are computed together end together. There is room for as many as a step can need; the last ones hold no tokens.
    """

    row: jax.Array
    place: jax.Array  # of the first token
    start: jax.Array  # its position
    end: jax.Array  # position after the last token; 0 where there is none
    first_block: jax.Array
    num_blocks: jax.Array


def tile_lengths(places: int, group: int) -> tuple[int, ...]:
    """The places of a single, a middle and a long tile, where a step of `places` can need them.

    A middle one has about `MIDDLE_QUERIES` for each KV head, whose `group` query heads share it.
    """
    middle = min(places, max(1, MIDDLE_QUERIES // group))
    return tuple(length for length, least in ((1, 1), (middle, FEW), (LONG, MANY)) if least <= places)


def cut(
    offsets: jax.Array,
    starts: jax.Array,
    lengths: tuple[int, ...],
    *,
    places: int,
    together: int,
    block_tokens: int,
    window: int | None,
) -> tuple[Tiles, jax.Array]:
    """Cut every row into long tiles, and what is left of it into a long one, middle ones or single tokens.

    There is room for a multiple of `together` tiles. Also returns how many there are of each length.
    """
    rows = starts.shape[0]
    counts = offsets[1:] - offsets[:-1]
    rest = counts % LONG
    tokens = jnp.stack(  # of each row, by the kind of tile that takes them
        [
            jnp.where(rest < FEW, rest, 0),
            jnp.where((rest >= FEW) & (rest < MANY), rest, 0),
            counts - jnp.where(rest < MANY, rest, 0),
        ][: len(lengths)]
    )
    length = jnp.asarray(lengths, jnp.int32)[:, None]
    number = -(-tokens // length)
    begin = jnp.where(length == LONG, 0, counts - tokens)  # long tiles come first in a row

    most = max(min(places, rows * (FEW - 1)), *(min(places // FEW, rows + places // of) for of in lengths[1:]), 1)
    index = jnp.arange(-(-most // together) * together, dtype=jnp.int32)
    until = jnp.cumsum(number, axis=1)
    row = jnp.minimum(jnp.sum(until[:, None] <= index[:, None], axis=2, dtype=jnp.int32), rows - 1)
    token = jnp.take_along_axis(begin - length * (until - number), row, axis=1) + length * index
    start = starts[row] + token
    end = jnp.where(index < until[:, -1:], start + jnp.minimum(counts[row] - token, length), 0)
    lowest = jnp.zeros_like(start) if window is None else jnp.maximum(start - window + 1, 0)
    first_block = lowest // block_tokens
    num_blocks = jnp.maximum(-(-end // block_tokens) - first_block, 0)
    arrays = (row, offsets[row] + token, start, end, first_block, num_blocks)
    order = jnp.argsort(-num_blocks, axis=1)
    return Tiles(*(jnp.take_along_axis(array, order, axis=1) for array in arrays)), until[:, -1]
