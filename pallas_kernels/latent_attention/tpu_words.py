"""Up to four heads on a TPU: two of a token share words, so that tokens fill registers, which heads would leave empty.

A token's words are `[C, 128]`, first those of its first two heads, and padding up to a whole tile.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.storage import HALF, LANES, SUBLANES, few_channels
from pallas_kernels.tpu.channels import channels_of, put_channels

MOST_HEADS, SHARING = 4, 2
LEAST_PLACES = SUBLANES
"""Of a tile: one place is a part of a register."""


def share_words(heads: int, dtype: Any) -> bool:
    """Whether so many heads of a type in products do."""
    return heads <= MOST_HEADS and jnp.dtype(dtype) == HALF


def channels_for(heads: int, width: int) -> int:
    """C of `heads` whose vectors are of `width`, both even parts of words."""
    channels = heads // SHARING * width // LANES
    fitting = (few for few in few_channels(jnp.uint32) if few >= channels)
    return next(fitting, -(-channels // SUBLANES) * SUBLANES)


def to_words(x: jax.Array) -> jax.Array:
    """`x [N, heads, W]` in bfloat16, of an even number of heads -> `[N, C, 128]` in uint32."""
    count, heads, width = x.shape
    bits = lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32)
    words = (bits[:, ::SHARING] | bits[:, 1::SHARING] << 16).reshape(count, -1, LANES)
    return jnp.pad(words, ((0, 0), (0, channels_for(heads, width) - words.shape[1]), (0, 0)))


def from_words(words: jax.Array, *, heads: int, width: int) -> jax.Array:
    """The way back, `[N, heads, width]`."""
    own = words[:, : heads // SHARING * width // LANES].reshape(-1, heads // SHARING, 1, width)
    bits = jnp.concatenate([own & 0xFFFF, own >> 16], axis=2).astype(jnp.uint16)
    return lax.bitcast_convert_type(bits, HALF).reshape(-1, heads, width)


def load_rows(held: Any, *, heads: int, width: int, simulated: bool) -> jax.Array:
    """The words of some places as rows `[heads * places, width]`: two of each place, for its first two heads, then for others."""
    each = width // LANES
    channels = (pltpu.bitcast(words, HALF) for words in channels_of(held, simulated=simulated))
    shared = [jnp.concatenate(list(itertools.islice(channels, each)), axis=1) for _ in range(heads // SHARING)]
    return jnp.concatenate(shared, axis=0)


def store_rows(held: Any, rows: jax.Array, *, heads: int, simulated: bool) -> None:
    """Rows as `load_rows` makes them, float32, as the words of some places."""
    values, (count, width) = rows.astype(HALF), rows.shape
    share = count * SHARING // heads
    parts = (
        pltpu.bitcast(values[first : first + share, column : column + LANES], jnp.uint32)
        for first in range(0, count, share)
        for column in range(0, width, LANES)
    )
    put_channels(held, parts, simulated=simulated)


def place_of_row(row: jax.Array, places: int) -> jax.Array:
    """Which of `places`, a power of two, a row is of."""
    return row // SHARING & (places - 1)
