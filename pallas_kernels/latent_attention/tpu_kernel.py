"""The TPU kernel: pages of latent vectors stream from HBM into two buffers while the scores of the block before are computed.

A block of pages is a matrix as it lies, tokens by numbers: keys of all heads, and its first columns are their values. So are a
tile's queries and results, places x heads by numbers, but for few heads, which share words (`tpu_words.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.latent_attention.tpu_blocks import places_at_once
from pallas_kernels.latent_attention.tpu_words import load_rows, place_of_row, store_rows
from pallas_kernels.storage import LANES
from pallas_kernels.tpu.attention.blocks import Blocks
from pallas_kernels.tpu.attention.schedule import Tiles, empty_tiles
from pallas_kernels.tpu.attention.softmax import LOG2_E, UNSEEN, accumulate, fill, product, repeat
from pallas_kernels.tpu.attention.stream import Pages, attend_tiles
from pallas_kernels.tpu.padding import Padding
from pallas_kernels.tpu.unpack import unpack_rows, unpacked_rows


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is fixed when the kernel is compiled.

    `cuts`: how rows of which lengths are cut; `heads`: of a place, with padding; `values`: numbers of one; `words`: whether heads
    share words; `continued`: the results of other rows are there already.
    """

    cuts: tuple[Blocks, ...]
    heads: int
    values: int
    words: bool
    pages_per_row: int
    scale: float
    continued: bool
    simulated: bool


def kernel(*refs: Any, settings: Settings) -> None:
    """All rows of a core: those of one token, then longer ones.

    Refs: the page table, the number of places that hold tokens, the tiles; queries `[N, heads, W]`, pages `[pages, T, W]`,
    results of other rows if there are any; results `[N, heads, V]`; scratch. Queries and results may be words `[N, C, 128]`.
    """
    left = iter(refs)
    table, used, tiles = next(left), next(left), Tiles(*(next(left) for _ in Tiles._fields[:-1]))
    queries, pages = next(left), next(left)
    if settings.continued:
        next(left)
    results, zeros, pages_arrived, queries_arrived, results_left, zeros_left = left

    core, cores = pl.program_id(0), pl.num_programs(0)
    padding = Padding(used[0], results, zeros, zeros_left)
    pl.when(core == 0)(padding.start)
    empty = empty_tiles(settings.cuts, rows=table.shape[0] // settings.pages_per_row, tokens=queries.shape[0])
    for cut, blocks in enumerate(settings.cuts):

        def attend(
            buffers: Any,
            arriving: Any,
            leaving: Any,
            largest: Any,
            total: Any,
            mixed: Any,
            *unpacked: Any,
            cut: int = cut,
            blocks: Blocks = blocks,
        ) -> None:
            stream = Pages(table, tiles, settings.pages_per_row, pages, buffers, pages_arrived)
            tokens = _Tokens(settings, tiles, queries, results, arriving, leaving, queries_arrived, results_left)
            state = _State(settings, blocks, tiles, arriving, largest, total, mixed, *unpacked)
            first = cut * (cores + 1) + core
            attend_tiles(tiles, tiles.bounds[first], tiles.bounds[first + 1], empty[cut], stream, tokens, state)

        width, rows = pages.shape[2], blocks.places * settings.heads
        column, packed = pltpu.VMEM((rows, LANES), jnp.float32), pages.dtype.itemsize == 1
        pl.run_scoped(
            attend,
            pltpu.VMEM((2, blocks.pages, *pages.shape[1:]), pages.dtype),
            pltpu.VMEM((2, blocks.places, *queries.shape[1:]), queries.dtype),
            pltpu.VMEM((blocks.places, *results.shape[1:]), results.dtype),
            column,
            column,
            pltpu.VMEM((rows, settings.values), jnp.float32),
            *([pltpu.VMEM((width // LANES, blocks.pages * pages.shape[1] // 2, LANES), jnp.uint32)] if packed else []),
        )
    pl.when(core == 0)(padding.wait)


class _Tokens:
    """Queries and results of one tile after the other: the next one's queries arrive while a tile is computed."""

    def __init__(
        self,
        settings: Settings,
        tiles: Tiles,
        source: Any,
        target: Any,
        arriving: Any,
        leaving: Any,
        arrived: Any,
        left: Any,
    ) -> None:
        self._settings, self._tiles, self._source, self._target = settings, tiles, source, target
        self._arriving, self._leaving, self._arrived, self._left = arriving, leaving, arrived, left
        self._places = leaving.shape[0]

    def fetch(self, tile: jax.Array) -> None:
        """Start the copy of a tile's queries; there is none for an empty tile."""
        pl.when(self._tiles.end[tile] > 0)(lambda: self._fetching(tile).start())

    def take(self, tile: jax.Array, clear: Callable[[Any], None]) -> None:
        """Wait for a tile's queries, and `clear` all places. Queries of places that the tile does not use mean nothing."""
        self._fetching(tile).wait()
        clear(pl.ds(0, self._places))

    def give(self, tile: jax.Array, results: Any, *, first: jax.Array) -> None:
        """Start to copy the results of a tile back; the tile before it has left the buffer by then."""
        pl.when(tile > first)(lambda: self.wait(tile - 1))
        settings, heads = self._settings, self._settings.heads
        some = min(self._places, places_at_once(heads))

        def give(index: jax.Array, _: None) -> None:
            values = results(pl.ds(pl.multiple_of(index * some * heads, some * heads), some * heads))
            places = pl.ds(index * some, some)
            if settings.words:
                store_rows(self._leaving.at[places], values, heads=heads, simulated=settings.simulated)
            else:
                self._leaving[places] = values.reshape(some, heads, -1).astype(self._leaving.dtype)

        lax.fori_loop(0, self._places // some, give, None)
        self._returning(tile).start()

    def wait(self, tile: jax.Array) -> None:
        """Until the results of `tile`, the last one, have left."""
        self._returning(tile).wait()

    def _fetching(self, tile: jax.Array) -> Any:
        count = self._count(tile)
        source = self._source.at[pl.ds(self._tiles.place[tile], count)]
        return pltpu.make_async_copy(source, self._arriving.at[tile % 2, pl.ds(0, count)], self._arrived)

    def _returning(self, tile: jax.Array) -> Any:
        count = self._count(tile)
        target = self._target.at[pl.ds(self._tiles.place[tile], count)]
        return pltpu.make_async_copy(self._leaving.at[pl.ds(0, count)], target, self._left)

    def _count(self, tile: jax.Array) -> Any:
        """Tokens of a tile that is not empty."""
        return 1 if self._places == 1 else self._tiles.end[tile] - self._tiles.start[tile]


class _State:
    """Online softmax of one tile after the other. Query m is the token at place `m // heads` for head `m % heads`, or where heads
    share words as `load_rows` has it.

    A block of 8-bit values is made bfloat16 in `pairs`, as `unpack_rows` leaves it, before products read it.
    """

    def __init__(
        self,
        settings: Settings,
        blocks: Blocks,
        tiles: Tiles,
        queries: Any,
        largest: Any,
        total: Any,
        mixed: Any,
        pairs: Any = None,
    ) -> None:
        self._scale, self._blocks, self._tiles, self._queries = settings.scale * LOG2_E, blocks, tiles, queries
        self._largest, self._total, self._mixed, self._pairs = largest, total, mixed, pairs
        self._settings, self._places, self._heads = settings, queries.shape[1], settings.heads

    def clear(self, places: Any) -> None:
        """Forget what the queries of some places, a slice, have seen."""
        rows = pl.ds(places.start * self._heads, places.size * self._heads)
        fill(self._largest.at[rows], UNSEEN)
        fill(self._total.at[rows], 0.0)
        fill(self._mixed.at[rows], 0.0)

    def results(self, rows: Any) -> jax.Array:
        """The values of some queries divided by their weights."""
        mixed: jax.Array = self._mixed[rows]
        return mixed / repeat(self._total[rows], mixed.shape[1])

    def add_block(self, tile: jax.Array, held: Any, begin: jax.Array) -> None:
        """Attend to the block at position `begin`."""
        pages, page_tokens, _ = held.shape
        if self._blocks.few:  # masks cost little here

            def add(part: Any) -> None:
                self._add(tile, self._keys(part), begin=begin, places=[pl.ds(0, self._places)], masked=True)

            if self._places > 1 or pages % 2 or pages // 2 * page_tokens % LANES:
                add(held)
                return
            # Of a block of which half is not there, half is left out. Of one token its position alone says whether that is so.
            half = self._tiles.end[tile] - begin <= pages // 2 * page_tokens
            pl.when(half)(lambda: add(held.at[pl.ds(0, pages // 2)]))
            pl.when(jnp.logical_not(half))(lambda: add(held))
            return
        keys = self._keys(held)
        some = min(self._places, places_at_once(self._heads))

        def add_all(*, masked: bool) -> None:
            def add(part: jax.Array, _: None) -> None:
                # Two that are independent of one another: their latencies overlap.
                first = pl.multiple_of(part * 2 * some, 2 * some)
                places = [pl.ds(first + at, some) for at in (0, some)]
                self._add(tile, keys, begin=begin, places=places, masked=masked)

            lax.fori_loop(0, self._places // (2 * some), add, None)

        partly = begin + pages * page_tokens > self._tiles.start[tile] + 1
        pl.when(partly)(lambda: add_all(masked=True))
        pl.when(jnp.logical_not(partly))(lambda: add_all(masked=False))

    def _keys(self, held: Any) -> Callable[[], jax.Array]:
        """What reads a block as products take it, `[tokens, W]`."""
        tokens = held.shape[0] * held.shape[1]
        if self._pairs is None:
            return lambda: held[...].reshape(tokens, held.shape[2])
        unpack_rows(held, self._pairs)
        return lambda: unpacked_rows(self._pairs, tokens)

    def _add(
        self, tile: jax.Array, block: Callable[[], jax.Array], *, begin: jax.Array, places: list[Any], masked: bool
    ) -> None:
        """Let the queries of each of `places` (slices) attend to a block."""
        keys = block()
        values = keys[:, : self._mixed.shape[1]]
        # All scores first: the compiler overlaps the weights of one with the products of another only if they stand so.
        all_scores = [self._scores(tile, keys, begin, some, masked=masked) for some in places]
        for scores, some in zip(all_scores, places, strict=True):
            rows = pl.ds(some.start * self._heads, some.size * self._heads)
            accumulate(scores, values, self._largest.at[rows], self._total.at[rows], self._mixed.at[rows])

    def _scores(self, tile: jax.Array, keys: jax.Array, begin: jax.Array, places: Any, *, masked: bool) -> jax.Array:
        """Of some places' queries and a block of keys at position `begin`, `[M, tokens]`."""
        settings, heads, width = self._settings, self._heads, keys.shape[1]
        if settings.words:
            held = self._queries.at[tile % 2, places]
            queries = load_rows(held, heads=heads, width=width, simulated=settings.simulated)
        else:
            queries = self._queries[tile % 2, places].reshape(places.size * heads, width)
        scores = product(queries, keys, axis=1) * self._scale
        if not masked:
            return scores
        shape = scores.shape if settings.words else (places.size, heads, keys.shape[0])
        place, key = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, len(shape) - 1))
        if settings.words:
            place = place_of_row(place, places.size)
        seen = begin + key <= self._tiles.start[tile] + places.start + place
        return jnp.where(seen.reshape(scores.shape), scores, -jnp.inf)
