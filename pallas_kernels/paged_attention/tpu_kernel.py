"""The TPU kernel: pages stream from HBM into two buffers while the scores of the block before are computed.

Arithmetic is that of `xla.py`: products in the cache's type (bfloat16, if that is quantised), sums in float32, weights in base 2
with a running maximum that is a whole number, so that rescaling is exact and a block that a token does not see changes nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.paged_attention.tpu_blocks import Blocks
from pallas_kernels.paged_attention.tpu_schedule import Schedule
from pallas_kernels.paged_attention.tpu_unpack import unpacked
from pallas_kernels.storage import LANES

UNSEEN = -1e30  # finite: the maximum over nothing stays a number
LOG2_E = math.log2(math.e)
MOST_UNROLLED = 32
TILE_PLACES = 16  # rows of a tile of 16-bit values


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is fixed when the kernel is compiled.

    `group` query heads per KV head; `width` W, lanes of a query; `side_by_side`: a vector of the cache is `[key | value]`.
    """

    blocks: Blocks
    kv_heads: int
    group: int
    pages_per_row: int
    width: int
    side_by_side: bool
    scale: float
    window: int | None
    soft_cap: float | None
    has_sinks: bool
    has_slopes: bool
    has_scales: bool
    simulated: bool

    @property
    def flat(self) -> bool:
        """Queries are `[heads, places, W]` and results `[places, heads * W]`, as the projections around have them.

        It takes a tile whose places are whole tiles of the chip; then no token moves between a tile's rows on the way.
        """
        return self.blocks.places % TILE_PLACES == 0


def kernel(*refs: Any, settings: Settings) -> None:
    """One grid step: `blocks.tiles` tiles.

    Refs: the schedule, queries, pages, whichever there are of sinks, slopes and scales, results, scratch.
    """
    schedule = Schedule(*refs[: len(Schedule._fields)])
    queries, kv_pages, *refs_left = refs[len(Schedule._fields) :]
    sinks = refs_left.pop(0) if settings.has_sinks else None
    slopes = refs_left.pop(0) if settings.has_slopes else None
    scales = refs_left.pop(0) if settings.has_scales else None
    results, buffers, arrived, largest, total, mixed, *split = refs_left
    step = pl.program_id(0) * pl.num_programs(1) + pl.program_id(1)
    pages = _Pages(schedule, settings, kv_pages, buffers, arrived)

    @pl.when(pl.program_id(1) == 0)
    def fetch_the_first() -> None:
        tile = schedule.first[pl.program_id(0)]
        pages.fetch(tile, pages.first_block(tile), schedule.buffer[tile])

    def attend_tile(index: jax.Array, _: None) -> None:
        tile = step * settings.blocks.tiles + index
        load = functools.partial(_load, queries, index, settings)
        store = functools.partial(_store, results, index, settings)
        state = _State(settings, schedule, tile, load, slopes, scales, largest, total, mixed)
        first, last = pages.first_block(tile), pl.cdiv(schedule.end[tile], pages.block_tokens) - 1

        @pl.when(schedule.end[tile] == 0)
        def leave_out() -> None:
            _each_head(settings, lambda head: store(head, jnp.zeros(mixed.shape[1:], results.dtype)))

        def attend_block(block: jax.Array, _: None) -> None:
            buffer = (schedule.buffer[tile] + block - first) % 2
            next_tile = jnp.where(block == last, schedule.follow[tile], tile)
            next_block = jnp.where(block == last, pages.first_block(next_tile), block + 1)
            pages.fetch(next_tile, next_block, 1 - buffer)
            pages.wait(tile, block, buffer)
            begin, end = block * pages.block_tokens, (block + 1) * pages.block_tokens
            partly = end > schedule.start[tile] + 1
            if settings.window is not None:
                partly |= begin < schedule.end[tile] - settings.window
            held = buffers.at[buffer]
            pl.when(partly)(lambda: state.add_block(held, begin, split, partly=True))
            pl.when(jnp.logical_not(partly))(lambda: state.add_block(held, begin, split, partly=False))

        @pl.when(schedule.end[tile] > 0)
        def attend_all() -> None:
            _each_head(settings, state.clear)
            lax.fori_loop(first, last + 1, attend_block, None)
            _each_head(settings, lambda head: store(head, state.finish(head, sinks)))

    lax.fori_loop(0, settings.blocks.tiles, attend_tile, None)


def _load(queries: Any, index: jax.Array, settings: Settings, head: Any) -> jax.Array:
    """The queries of a KV head of a grid step's tile `index`, `[M, W]`."""
    if not settings.flat:
        loaded: jax.Array = queries[index, head]
        return loaded
    members = pl.ds(head * settings.group, settings.group)
    return queries[members, _places(index, settings)].reshape(-1, settings.width)


def _store(results: Any, index: jax.Array, settings: Settings, head: Any, values: jax.Array) -> None:
    """The results of those queries."""
    if not settings.flat:
        results[index, head] = values.astype(results.dtype)
        return
    for member, part in enumerate(jnp.split(values.astype(results.dtype), settings.group)):
        lanes = (head * settings.group + member) * settings.width
        lanes = lanes if isinstance(lanes, int) else pl.multiple_of(lanes, LANES)
        results[_places(index, settings), pl.ds(lanes, settings.width)] = part


def _places(index: jax.Array, settings: Settings) -> Any:
    places = settings.blocks.places
    return pl.ds(pl.multiple_of(index * places, TILE_PLACES), places)


class _Pages:
    """The copies of pages into buffers. A block's pages that no token of the tile sees are not copied."""

    def __init__(self, schedule: Schedule, settings: Settings, kv_pages: Any, buffers: Any, arrived: Any) -> None:
        self._schedule, self._settings = schedule, settings
        self._kv_pages, self._buffers, self._arrived = kv_pages, buffers, arrived
        self._block_pages, self._page_tokens = buffers.shape[1:3]
        self.block_tokens = self._block_pages * self._page_tokens

    def first_block(self, tile: jax.Array) -> jax.Array:
        return self._schedule.low[tile] // self.block_tokens

    def _range(self, tile: jax.Array, block: jax.Array) -> tuple[jax.Array, jax.Array]:
        first = jnp.maximum(block * self._block_pages, self._schedule.low[tile] // self._page_tokens)
        end = jnp.minimum((block + 1) * self._block_pages, pl.cdiv(self._schedule.end[tile], self._page_tokens))
        return first, end

    def fetch(self, tile: jax.Array, block: jax.Array, buffer: jax.Array) -> None:
        """Start the copies; there are none for the empty tile after the last one."""
        first, end = self._range(tile, block)
        table = self._schedule.row[tile] * self._settings.pages_per_row

        def start(page: jax.Array) -> None:
            source = self._kv_pages.at[self._schedule.pages[table + page]]
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

    def wait(self, tile: jax.Array, block: jax.Array, buffer: jax.Array) -> None:
        """Wait until as many bytes have arrived as `fetch` asked for; from where they came does not matter."""
        first, end = self._range(tile, block)

        def wait(buffers: Any) -> None:
            pltpu.make_async_copy(buffers, buffers, self._arrived.at[buffer]).wait()

        def wait_for_some() -> None:
            lax.fori_loop(first, end, lambda page, _: wait(self._buffers.at[buffer, 0]), None)

        self._whether_whole(first, end, lambda: wait(self._buffers.at[buffer]), wait_for_some)

    def _whether_whole(
        self, first: jax.Array, end: jax.Array, whole: Callable[[], None], part: Callable[[], None]
    ) -> None:
        pl.when(end - first == self._block_pages)(whole)
        pl.when(end - first != self._block_pages)(part)


class _State:
    """Online softmax of one tile: `largest` score rounded up and `total` weight `[K, M, 128]`, `mixed` values `[K, M, W]`.

    Query m of a KV head is the token at place `m % places` for its query head `m // places`.
    """

    def __init__(
        self,
        settings: Settings,
        schedule: Schedule,
        tile: jax.Array,
        queries: Callable[[Any], jax.Array],
        slopes: Any,
        scales: Any,
        largest: Any,
        total: Any,
        mixed: Any,
    ) -> None:
        self._settings, self._queries, self._slopes, self._scales = settings, queries, slopes, scales
        self._start, self._end, self._low = schedule.start[tile], schedule.end[tile], schedule.low[tile]
        self._largest, self._total, self._mixed = largest, total, mixed

    def clear(self, head: Any) -> None:
        _fill(self._largest.at[head], UNSEEN)
        _fill(self._total.at[head], 0.0)
        _fill(self._mixed.at[head], 0.0)

    def finish(self, head: Any, sinks: Any) -> jax.Array:
        """The values divided by the weights. Sinks take part only now: they have no value."""
        total = self._total[head]
        if sinks is not None:
            total = total + jnp.exp2(sinks[head] - self._largest[head])
        mixed = self._mixed[head] / _repeat(total, self._settings.width)
        if self._scales is not None:
            mixed *= self._scales[1, head]
        return jnp.where(self._place(mixed.shape) < self._end - self._start, mixed, 0.0)

    def add_block(self, held: Any, begin: jax.Array, split: list[Any], *, partly: bool) -> None:
        """Attend to the block at position `begin`; `partly`: some token does not see some of it, or it holds stale data."""
        kv_heads = self._settings.kv_heads
        tokens = held.shape[0] * held.shape[1]
        readable = seen = distance = None
        if partly:
            seen = self._distance(begin, tokens) <= 0
            if self._settings.window is not None:
                seen &= self._distance(begin, tokens) > -self._settings.window
            position = begin + lax.broadcasted_iota(jnp.int32, (tokens, held.shape[3]), 0)
            readable = (self._low <= position) & (position < self._end)
        if self._slopes is not None:
            distance = self._distance(begin, tokens).astype(jnp.float32)
        if self._settings.blocks.few:
            for head, keys, values in _heads(held, readable, self._settings):
                self._add(head, keys, values, seen, distance)
            return
        all_keys, all_values = split
        for head, keys, values in _heads(held, readable, self._settings):
            all_keys[head], all_values[head] = keys, values
        together = 2 if kv_heads % 2 == 0 else 1

        def add(index: jax.Array, _: None) -> None:
            for offset in range(together):  # independent of one another: their latencies overlap
                head = index * together + offset
                self._add(head, all_keys[head], all_values[head], seen, distance)

        lax.fori_loop(0, kv_heads // together, add, None)

    def _add(
        self, head: Any, keys: jax.Array, values: jax.Array, seen: jax.Array | None, distance: jax.Array | None
    ) -> None:
        scores = self._scores(head, _product(self._queries(head), keys, axis=1))
        if distance is not None:
            scores += _repeat(self._slopes[head], scores.shape[1]) * distance
        if seen is not None:
            scores = jnp.where(seen, scores, -jnp.inf)
        before = self._largest[head]
        largest = jnp.maximum(before, jnp.ceil(scores.max(axis=1, keepdims=True)))
        weights = jnp.exp2(scores - _repeat(largest, scores.shape[1]))
        decay = jnp.exp2(before - largest)
        self._largest[head] = largest
        self._total[head] = self._total[head] * decay + weights.sum(axis=1, keepdims=True)
        mixed = _product(weights.astype(values.dtype), values, axis=0)
        self._mixed[head] = self._mixed[head] * _repeat(decay, mixed.shape[1]) + mixed

    def _distance(self, begin: jax.Array, tokens: int) -> jax.Array:
        """Positions from each query to each key of the block at `begin`, `[M, tokens]`; above 0 for a key that is not seen."""
        shape = (self._mixed.shape[1], tokens)
        return begin + lax.broadcasted_iota(jnp.int32, shape, 1) - (self._start + self._place(shape))

    def _place(self, shape: tuple[int, ...]) -> jax.Array:
        """The place of each query, the first axis of `shape`."""
        query, places = lax.broadcasted_iota(jnp.int32, shape, 0), self._settings.blocks.places
        return query & (places - 1) if places.bit_count() == 1 else query % places

    def _scores(self, head: Any, products: jax.Array) -> jax.Array:
        scale, soft_cap = self._settings.scale, self._settings.soft_cap
        if self._scales is not None:
            scale = scale * self._scales[0, head]
        if soft_cap is None:
            return products * (scale * LOG2_E)
        return (soft_cap * LOG2_E) * jnp.tanh(products * (scale / soft_cap))


def _heads(held: Any, readable: jax.Array | None, settings: Settings) -> Iterator[tuple[int, jax.Array, jax.Array]]:
    """Each KV head's keys and values `[tokens, W]` of a block, without what is stale: 0 times a NaN is a NaN."""
    channels = _channels(held, readable, settings)
    vectors = settings.width // LANES
    for head in range(settings.kv_heads):
        if settings.side_by_side:  # W holds a key and its value, and queries are 0 where the value is
            both = next(channels)
            yield head, both, both
        else:
            keys, values = (_joined([next(channels) for _ in range(vectors)]) for _ in range(2))
            yield head, keys, values


def _channels(held: Any, readable: jax.Array | None, settings: Settings) -> Iterator[jax.Array]:
    """One channel `[tokens, 128]` of a block after the other. A 32-bit word of a tile holds neighbouring channels of a token."""
    block_pages, page_tokens, channels, lanes = held.shape
    tokens = block_pages * page_tokens
    if settings.simulated:  # TPU interpret mode knows no reshaped or reinterpreted references
        for channel in range(channels):
            values = held[:, :, channel].reshape(tokens, lanes)
            values = values if readable is None else jnp.where(readable, values, jnp.zeros((), values.dtype))
            yield values.astype(jnp.bfloat16 if held.dtype.itemsize == 1 else held.dtype)
        return
    rows = held.reshape(tokens * channels, lanes)
    packed = 4 // held.dtype.itemsize
    words = rows if packed == 1 else rows.bitcast(jnp.uint32)
    for word in range(channels // packed):
        taken = words[pl.ds(word, tokens, stride=channels // packed)]
        taken = taken if readable is None else jnp.where(readable, taken, jnp.zeros((), taken.dtype))
        yield from [taken] if packed == 1 else (unpacked(taken, at, held.dtype) for at in range(packed))


def _joined(vectors: list[jax.Array]) -> jax.Array:
    return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=1)


def _product(left: jax.Array, right: jax.Array, *, axis: int) -> jax.Array:
    precision = lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    return lax.dot_general(
        left, right, (((1,), (axis,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )


def _repeat(columns: jax.Array, width: int) -> jax.Array:
    """`[M, 128]` of equal columns as `[M, width]`."""
    return columns if width == LANES else jnp.concatenate([columns] * (width // LANES), axis=1)


def _fill(ref: Any, value: float) -> None:
    ref[...] = jnp.full(ref.shape, value, ref.dtype)


def _each_head(settings: Settings, body: Callable[[Any], None]) -> None:
    lax.fori_loop(
        0,
        settings.kv_heads,
        lambda head, _: body(head),
        None,
        unroll=settings.blocks.few and settings.kv_heads <= MOST_UNROLLED,
    )
