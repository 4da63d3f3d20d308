"""Tokens on their way: a tile's queries come from their flat places in HBM, and its results go back to them.

A token is `[C, 128]`, channels of 128 lanes as in a page, so that a run of tokens may begin anywhere: vector `v` of query head
`n` is channel `v * N + n`. A product wants the tokens of a head one below the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.storage import LANES
from pallas_kernels.tpu.attention.schedule import Tiles
from pallas_kernels.tpu.channels import SOME_PLACES, channels_of, put_channels

Results = Callable[[int, Any, Any], jax.Array]
"""The results of a KV head's queries (a slice) in some lanes (a slice), float32."""


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

    def take(self, tile: jax.Array, clear: Callable[[Any], None]) -> None:
        """Wait for a tile's queries and lay them out by KV head. Those of places that the tile does not use mean nothing.

        `clear` is called for places (a slice) as they are laid out, when stores have time.
        """
        self._fetching(tile).wait()
        if self._places == 1:
            clear(pl.ds(0, 1))
            self._take_one()
            return

        def take(places: Any) -> None:
            held = channels_of(self._arriving.at[places], simulated=self._simulated)
            for channel, values in zip(range(self._used), held, strict=False):
                self._queries[self._at(channel, places)] = values
            clear(places)

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
