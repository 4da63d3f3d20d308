"""Rows cut into tiles, the unit that the XLA path computes. Which tiles there are is data: code knows their lengths only.

On the CPU every small step of this costs a start its compilation for every bucket, and a kernel call in every layer.
So it is a few products of numbers below 2^24, which float32 holds, and not the sums and gathers that it stands for.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

SINGLES = 8
"""A step of so many places is taken token by token: code for longer tiles would cost more to compile than it saves."""
LEAST_QUERIES = 64
MOST_QUERIES = 256


class Tiles(NamedTuple):
    """The tiles of a step, int32 `[kinds, tiles]`, by their length and then those of most context first.

    So tiles that are computed together end together. There is room for as many as a step can need; the last ones hold no tokens.
    """

    row: jax.Array
    place: jax.Array  # of the first token
    start: jax.Array  # its position
    end: jax.Array  # position after the last token; 0 where there is none


def tile_lengths(places: int, group: int) -> tuple[int, ...]:
    """The places of a single tile and of a long one, where a step of `places` is worth one.

    A long one has an eighth of the step, but 64 queries for each KV head, whose `group` query heads share it, and at most 256:
    shorter ones read the keys more often, longer ones are wasted on short rows.
    """
    if places <= SINGLES:
        return (1,)
    queries = min(max(LEAST_QUERIES, places // 8 * group), MOST_QUERIES)
    return (1, min(places, max(1, queries // group)))


def few(length: int) -> int:
    """Fewer tokens than this are less work one by one than in a tile of `length`."""
    return max(4, length // 8)


def cut(
    offsets: jax.Array, starts: jax.Array, lengths: tuple[int, ...], *, places: int, together: int
) -> tuple[Tiles, jax.Array]:
    """Cut every row into long tiles, and what is left of it into one more or into single tokens.

    There is room for a multiple of `together` tiles. Also returns how many there are of each length, int32 `[kinds]`.
    """
    rows = starts.shape[0]
    order = jnp.argsort(-(starts + jnp.diff(offsets)))
    place, start, end = (
        array.at[order].get(mode="promise_in_bounds") for array in (offsets[:-1], starts, starts + jnp.diff(offsets))
    )
    count = end - start
    if len(lengths) == 1:
        tokens, most = [count], places
    else:
        rest = count % lengths[1]
        single = jnp.where(rest < few(lengths[1]), rest, 0)
        tokens = [single, count - single]
        most = max(min(places, rows * (few(lengths[1]) - 1)), rows + places // lengths[1])
    length = jnp.asarray(lengths, jnp.int32)[:, None]
    begin = count - jnp.stack(tokens[:1] + [count] * (len(lengths) - 1))  # the row's first token in a tile of this kind
    number = -(-jnp.stack(tokens) // length)

    until = _product(number, jnp.tri(rows, dtype=jnp.float32).T)  # [kinds, B]
    tile = jnp.arange(-(-most // together) * together, dtype=jnp.int32)[:, None]
    before = (until - number)[:, None]
    is_row = (before <= tile) & (tile < until[:, None])  # [kinds, tiles, B]
    fields = jnp.stack(
        [jnp.broadcast_to(f, number.shape) for f in (order, place, start, end, begin, until - number)], axis=-1
    )
    row, place, start, end, begin, before = jnp.moveaxis(_product(is_row, fields), -1, 0)
    skipped = jnp.where(end > 0, begin + length * (tile[:, 0] - before), 0)
    start = start + skipped
    return Tiles(row, place + skipped, start, jnp.minimum(end, start + length)), until[:, -1]


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    """`left @ right` of whole numbers, each sum below 2^24."""
    product = jnp.matmul(left.astype(jnp.float32), right.astype(jnp.float32), precision=lax.Precision.HIGHEST)
    return product.astype(jnp.int32)
