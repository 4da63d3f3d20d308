"""The loop of a TPU kernel over tiles and their blocks of pages: what the next one needs is on its way while one is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.tpu.attention.schedule import Tiles

MOST_UNROLLED = 32


class Arriving(Protocol):
    """Queries and results of one tile after the other, on their way."""

    def fetch(self, tile: jax.Array) -> None: ...

    def take(self, tile: jax.Array, clear: Callable[[Any], None]) -> None: ...

    def give(self, tile: jax.Array, results: Any, *, first: jax.Array) -> None: ...

    def wait(self, tile: jax.Array) -> None: ...


class State(Protocol):
    """What a tile has seen so far."""

    @property
    def results(self) -> Any:
        """What `Arriving.give` takes."""

    def clear(self, places: Any) -> None: ...

    def add_block(self, tile: jax.Array, held: Any, begin: jax.Array) -> None: ...


def attend_tiles(
    tiles: Tiles,
    first_tile: jax.Array,
    end_tile: jax.Array,
    empty: int,
    pages: Pages,
    tokens: Arriving,
    state: State,
) -> None:
    """The tiles from `first_tile` on. What the next one needs is on its way while one is computed."""

    def or_empty(tile: jax.Array) -> jax.Array:
        return jnp.where(tile < end_tile, tile, empty)

    def attend_tile(tile: jax.Array, _: None) -> None:
        following = or_empty(tile + 1)
        tokens.take(tile, state.clear)
        tokens.fetch(following)
        first, last = pages.first_block(tile), pl.cdiv(tiles.stop[tile], pages.block_tokens) - 1

        def attend_block(block: jax.Array, _: None) -> None:
            buffer = (tiles.buffer[tile] + block - first) % 2
            next_tile = jnp.where(block == last, following, tile)
            next_block = jnp.where(block == last, pages.first_block(following), block + 1)
            pages.fetch(next_tile, next_block, 1 - buffer)
            held = pages.wait(tile, block, buffer)
            state.add_block(tile, held, block * pages.block_tokens)

        lax.fori_loop(first, last + 1, attend_block, None)
        tokens.give(tile, state.results, first=first_tile)

    begin = or_empty(first_tile)
    pages.fetch(begin, pages.first_block(begin), tiles.buffer[begin])
    tokens.fetch(begin)
    lax.fori_loop(first_tile, end_tile, attend_tile, None)
    pl.when(end_tile > first_tile)(lambda: tokens.wait(end_tile - 1))


class Pages:
    """The copies of pages `[T, ...]` into buffers. A block's pages that no token of the tile sees are not copied."""

    def __init__(self, table: Any, tiles: Tiles, pages_per_row: int, kv_pages: Any, buffers: Any, arrived: Any) -> None:
        self._table, self._tiles, self._pages_per_row = table, tiles, pages_per_row
        self._kv_pages, self._buffers, self._arrived = kv_pages, buffers, arrived
        self._block_pages, self._page_tokens = buffers.shape[1:3]
        self.block_tokens = self._block_pages * self._page_tokens

    def first_block(self, tile: jax.Array) -> jax.Array:
        return self._tiles.low[tile] // self.block_tokens

    def _range(self, tile: jax.Array, block: jax.Array) -> tuple[jax.Array, jax.Array]:
        first = jnp.maximum(block * self._block_pages, self._tiles.low[tile] // self._page_tokens)
        end = jnp.minimum((block + 1) * self._block_pages, pl.cdiv(self._tiles.stop[tile], self._page_tokens))
        return first, end

    def fetch(self, tile: jax.Array, block: jax.Array, buffer: jax.Array) -> None:
        """Start the copies; there are none for an empty tile."""
        first, end = self._range(tile, block)
        row = self._tiles.row[tile] * self._pages_per_row

        def start(page: jax.Array) -> None:
            source = self._kv_pages.at[self._table[row + page]]
            target = self._buffers.at[buffer, page - block * self._block_pages]
            pltpu.make_async_copy(source, target, self._arrived.at[buffer]).start()

        def start_all() -> None:
            for place in range(self._block_pages):  # without a loop's edge the copies' addresses are computed together
                start(first + place)

        def start_some() -> None:
            lax.fori_loop(first, end, lambda page, _: start(page), None)

        if self._block_pages > MOST_UNROLLED:
            start_some()
        else:
            self._whether_whole(first, end, start_all, start_some)

    def wait(self, tile: jax.Array, block: jax.Array, buffer: jax.Array) -> Any:
        """Wait for as many bytes as `fetch` asked for, from wherever they come; the buffer that now holds the block."""
        first, end = self._range(tile, block)

        def wait(buffers: Any) -> None:
            pltpu.make_async_copy(buffers, buffers, self._arrived.at[buffer]).wait()

        def wait_for_some() -> None:
            lax.fori_loop(first, end, lambda page, _: wait(self._buffers.at[buffer, 0]), None)

        held = self._buffers.at[buffer]
        self._whether_whole(first, end, lambda: wait(held), wait_for_some)
        if held.ndim == 3 and held.dtype.itemsize == 1:  # unpacked, whatever is stale is a number
            return held
        begin, tokens_end = block * self._block_pages, self._tiles.stop[tile]
        stale = (first > begin) | (tokens_end < (block + 1) * self.block_tokens)
        pl.when(stale)(lambda: self._clear(held, first - begin, end - begin, tokens_end - begin * self._page_tokens))
        return held

    def _clear(self, held: Any, first: jax.Array, end: jax.Array, tokens_end: jax.Array) -> None:
        """Zeros in a block but for its pages `first` to `end` and up to `tokens_end`: 0 times what is stale may be NaN."""

        def clear_page(page: jax.Array, _: None) -> None:
            held[page] = jnp.zeros(held.shape[1:], held.dtype)

        def clear_token(token: jax.Array, _: None) -> None:
            held[end - 1, token] = jnp.zeros(held.shape[2:], held.dtype)

        kept = tokens_end - (end - 1) * self._page_tokens
        lax.fori_loop(0, first, clear_page, None)
        if held.ndim == 4:
            lax.fori_loop(kept, self._page_tokens, clear_token, None)
        else:  # a token is less than a tile
            page = held[end - 1].astype(jnp.float32)
            token = lax.broadcasted_iota(jnp.int32, page.shape, 0)
            held[end - 1] = jnp.where(token < kept, page, 0.0).astype(held.dtype)
        lax.fori_loop(end, self._block_pages, clear_page, None)

    def _whether_whole(
        self, first: jax.Array, end: jax.Array, whole: Callable[[], None], part: Callable[[], None]
    ) -> None:
        pl.when(end - first == self._block_pages)(whole)
        pl.when(end - first != self._block_pages)(part)
