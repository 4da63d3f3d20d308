"""Tokens on their way: a tile's queries come from their flat places in HBM, its results go back to them, and padding gets zeros.

A token is `[C, 128]`, channels of 128 lanes as in a page, so that a run of tokens may begin anywhere: vector `v` of query head
`n` is channel `v * N + n`. A product wants the tokens of a head one below the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.paged_attention.tpu_schedule import Tiles
from pallas_kernels.paged_attention.tpu_unpack import unpacked
from pallas_kernels.storage import LANES

Results = Callable[[int, Any, Any], jax.Array]
"""The results of a KV head's queries (a slice) in some lanes (a slice), float32."""
SOME_PLACES = 16
"""Tokens that are laid out at once: rows of a tile of 16-bit values."""


class Tokens:
    """The queries and results of one tile after the other: the next one's queries are on their way while a tile is computed.

    Query m of a KV head is the token at place `m % places` for its query head `m // places`.
    """

    def __init__(
        self,
        tiles: Tiles,
        *,
        group: int,
        simulated: bool,
        source: Any,
        target: Any,
        arriving: Any,
        leaving: Any,
        arrived: Any,
        left: Any,
        queries: Any,
    ) -> None:
        self._tiles, self._simulated = tiles, simulated
        self._source, self._target = source, target
        self._arriving, self._leaving, self._arrived, self._left = arriving, leaving, arrived, left
        self._queries = queries
        self._places, self._channels, _ = arriving.shape
        self._group, self._heads = group, queries.shape[0] * group
        self._vectors = queries.shape[2] // LANES
        self._used = self._vectors * self._heads

    def fetch(self, tile: jax.Array) -> None:
        """Start the copy of a tile's queries; there is none for an empty tile."""
        pl.when(self._tiles.end[tile] > 0)(lambda: self._fetching(tile).start())

    def take(self, tile: jax.Array) -> None:
        """Wait for a tile's queries and lay them out by KV head. Those of places that the tile does not use mean nothing."""
        self._fetching(tile).wait()
        if self._places == 1:
            self._take_one()
            return

        def take(places: Any) -> None:
            held = channels_of(self._arriving.at[places], simulated=self._simulated)
            for channel, values in zip(range(self._used), held, strict=False):
                self._queries[self._at(channel, places)] = values

        self._some_at_once(take)

    def give(self, tile: jax.Array, results: Results, *, first: jax.Array) -> None:
        """Start to copy the results of a tile back; the tile before it has left the buffer by then."""
        pl.when(tile > first)(lambda: self.wait(tile - 1))
        if self._places == 1:
            self._give_one(results)
        else:

            def give(places: Any) -> None:
                values = (results(*self._at(channel, places)) for channel in range(self._used))
                put_channels(self._leaving.at[places], values, simulated=self._simulated)

            self._some_at_once(give)
        self._returning(tile).start()

    def wait(self, tile: jax.Array) -> None:
        """Until the results of `tile`, the last one, have left."""
        self._returning(tile).wait()

    def _take_one(self) -> None:
        """A token's query heads are one below the other already."""
        token = self._arriving[0].astype(jnp.float32)  # rows of 32 bits can be cut anywhere
        for channel in range(0, self._used, self._group):
            head, _, lanes = self._at(channel, pl.ds(0, 1))
            self._queries[head, :, lanes] = token[channel : channel + self._group].astype(self._queries.dtype)

    def _give_one(self, results: Results) -> None:
        where = [self._at(channel, pl.ds(0, 1)) for channel in range(0, self._used, self._group)]
        parts = [results(head, pl.ds(0, self._group), lanes) for head, _, lanes in where]
        if self._used < self._channels:
            parts.append(jnp.zeros((self._channels - self._used, LANES), jnp.float32))
        self._leaving[0] = jnp.concatenate(parts).astype(self._leaving.dtype)

    def _at(self, channel: int, places: Any) -> tuple[int, Any, Any]:
        """Where a channel of some places is in what is laid out by KV head."""
        vector, head = divmod(channel, self._heads)
        head, member = divmod(head, self._group)
        return head, pl.ds(member * self._places + places.start, places.size), pl.ds(vector * LANES, LANES)

    def _some_at_once(self, act: Callable[[Any], None]) -> None:
        """Call `act` with some places after the other: the code for all of them would be long."""
        some = min(SOME_PLACES, self._places)
        if some == self._places:
            act(pl.ds(0, some))
        else:
            parts = self._places // some
            lax.fori_loop(0, parts, lambda at, _: act(pl.ds(pl.multiple_of(at * some, some), some)), None)

    def _fetching(self, tile: jax.Array) -> Any:
        count = self._count(tile)
        source = self._source.at[pl.ds(self._tiles.place[tile], count)]
        return pltpu.make_async_copy(source, self._arriving.at[pl.ds(0, count)], self._arrived)

    def _returning(self, tile: jax.Array) -> Any:
        count = self._count(tile)
        target = self._target.at[pl.ds(self._tiles.place[tile], count)]
        return pltpu.make_async_copy(self._leaving.at[pl.ds(0, count)], target, self._left)

    def _count(self, tile: jax.Array) -> Any:
        """Tokens of a tile that is not empty."""
        return 1 if self._places == 1 else self._tiles.end[tile] - self._tiles.start[tile]


class Padding:
    """Zeros in the places of the results from `used` on."""

    def __init__(self, used: jax.Array, target: Any, zeros: Any, copied: Any) -> None:
        self._used, self._target, self._zeros, self._copied = used, target, zeros, copied
        self._places = target.shape[0] - used

    def start(self) -> None:
        """Start the copies."""

        @pl.when(self._places > 0)
        def clear() -> None:
            self._zeros[...] = jnp.zeros(self._zeros.shape, self._zeros.dtype)

        self._each(lambda copy: copy.start())

    def wait(self) -> None:
        """Until all are done."""
        self._each(lambda copy: copy.wait())

    def _each(self, act: Callable[[Any], None]) -> None:
        at_once = self._zeros.shape[0]
        whole, left = self._places // at_once, self._places % at_once
        lax.fori_loop(0, whole, lambda index, _: act(self._copy(index * at_once, at_once)), None)
        pl.when(left > 0)(lambda: act(self._copy(whole * at_once, left)))

    def _copy(self, before: jax.Array, count: Any) -> Any:
        target = self._target.at[pl.ds(self._used + before, count)]
        return pltpu.make_async_copy(self._zeros.at[pl.ds(0, count)], target, self._copied)


def channels_of(held: Any, *, simulated: bool) -> Iterator[jax.Array]:
    """One channel `[tokens, 128]` of tokens `[..., C, 128]` after the other."""
    *before, channels, lanes = held.shape
    tokens = math.prod(before)
    if simulated:  # TPU interpret mode knows no reshaped or reinterpreted references
        for channel in range(channels):
            values = held[(*(slice(None),) * len(before), channel)].reshape(tokens, lanes)
            yield values.astype(jnp.bfloat16 if held.dtype.itemsize == 1 else held.dtype)
        return
    words, packed = _words(held)
    for word in range(channels // packed):
        taken = words[pl.ds(word, tokens, stride=channels // packed)]
        yield from [taken] if packed == 1 else (unpacked(taken, at, held.dtype) for at in range(packed))


def put_channels(held: Any, values: Iterator[jax.Array], *, simulated: bool) -> None:
    """The other way round: store the channels, float32, of tokens `[tokens, C, 128]` of 32 or 16 bits.

    There may be fewer than C; what is in the others means nothing.
    """
    tokens, channels, _ = held.shape
    if simulated:
        for channel, value in enumerate(values):
            held[:, channel] = value.astype(held.dtype)
        return
    words, packed = _words(held)
    for word in range(channels // packed):
        parts = list(itertools.islice(values, packed))
        if parts:
            place = pl.ds(word, tokens, stride=channels // packed)
            words[place] = parts[0] if packed == 1 else _packed(parts[0], parts[-1])


def _words(held: Any) -> tuple[Any, int]:
    """Tokens `[..., C, 128]` as rows of 32-bit words, each of which holds so many neighbouring channels."""
    rows, packed = held.reshape(math.prod(held.shape[:-1]), held.shape[-1]), 4 // held.dtype.itemsize
    return rows if packed == 1 else rows.bitcast(jnp.uint32), packed


def _packed(low: jax.Array, high: jax.Array) -> jax.Array:
    """Two float32 values rounded to bfloat16, in a word."""
    low, high = (pltpu.bitcast(x.astype(jnp.bfloat16).astype(jnp.float32), jnp.uint32) for x in (low, high))
    return low >> 16 | high
