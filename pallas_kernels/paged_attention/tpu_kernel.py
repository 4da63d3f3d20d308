"""The TPU kernel: pages stream from HBM into two buffers while the scores of the block before are computed.

Arithmetic is that of `xla.py`: products in the cache's type (bfloat16, if that is quantised), sums in float32, weights in base 2
with a running maximum that is a whole number, so that rescaling is exact and a block that a token does not see changes nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.paged_attention.tpu_tokens import Tokens
from pallas_kernels.storage import LANES
from pallas_kernels.tpu.attention.blocks import Blocks
from pallas_kernels.tpu.attention.schedule import Tiles, empty_tiles
from pallas_kernels.tpu.attention.softmax import LOG2_E, UNSEEN, accumulate, fill, product, repeat
from pallas_kernels.tpu.attention.stream import Pages, attend_tiles
from pallas_kernels.tpu.channels import channels_of
from pallas_kernels.tpu.padding import Padding


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is fixed when the kernel is compiled.

    `cuts`: how rows of which lengths are cut; `group` query heads per KV head; `width` W, lanes of a query; `side_by_side`:
    a vector of the cache is `[key | value]`; `continued`: the results of other rows are there already; `spare_columns`: a
    product of values leaves columns of a matrix unit idle; `together`: KV heads that meet a block at a time, if queries are many.
    """

    cuts: tuple[Blocks, ...]
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
    has_until: bool
    has_scales: bool
    continued: bool
    spare_columns: bool
    together: int
    simulated: bool


def kernel(*refs: Any, settings: Settings) -> None:
    """All rows of a core: those of one token, then longer ones.

    Refs: the page table, the number of places that hold tokens, the tiles, of each place the last position that it sees if that
    is not its own; queries, pages, scales if there are any, for each cut the sinks and slopes that there are, results of other
    rows if there are any; results; scratch.
    """
    left = iter(refs)
    table, used, tiles = next(left), next(left), Tiles(*(next(left) for _ in Tiles._fields[:-1]))
    until = None
    if settings.has_until:
        tiles, until = tiles._replace(seen=next(left)), next(left)
    queries, kv_pages = next(left), next(left)
    scales = next(left) if settings.has_scales else None
    by_head = [
        (next(left) if settings.has_sinks else None, next(left) if settings.has_slopes else None) for _ in settings.cuts
    ]
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
            arranged: Any,
            largest: Any,
            total: Any,
            mixed: Any,
            *split: Any,
            cut: int = cut,
            blocks: Blocks = blocks,
        ) -> None:
            pages = Pages(table, tiles, settings.pages_per_row, kv_pages, buffers, pages_arrived)
            tokens = Tokens(
                tiles,
                group=settings.group,
                simulated=settings.simulated,
                source=queries,
                target=results,
                arriving=arriving,
                leaving=leaving,
                arrived=queries_arrived,
                left=results_left,
                queries=arranged,
            )
            state = _State(
                settings, blocks, tiles, arranged, *by_head[cut], scales, largest, total, mixed, split, until
            )
            first = cut * (cores + 1) + core
            attend_tiles(tiles, tiles.bounds[first], tiles.bounds[first + 1], empty[cut], pages, tokens, state)

        pl.run_scoped(attend, *_scratch(blocks, settings, queries, kv_pages))
    pl.when(core == 0)(padding.wait)


def _scratch(blocks: Blocks, settings: Settings, queries: Any, kv_pages: Any) -> list[Any]:
    """What the tiles of a cut need in VMEM, in the order of the arguments above."""
    rows = blocks.places * settings.group
    block_tokens = blocks.pages * kv_pages.shape[1]
    moved = pltpu.VMEM((blocks.places, *queries.shape[1:]), queries.dtype)
    column = pltpu.VMEM((settings.kv_heads, rows, LANES), jnp.float32)
    split = pltpu.VMEM((settings.kv_heads, block_tokens, settings.width), queries.dtype)
    return [
        pltpu.VMEM((2, blocks.pages, *kv_pages.shape[1:]), kv_pages.dtype),
        moved,
        moved,
        pltpu.VMEM((settings.kv_heads, rows, settings.width), queries.dtype),
        column,
        column,
        pltpu.VMEM((settings.kv_heads, rows, settings.width), jnp.float32),
        *([] if blocks.few else [split, split]),
        *([pltpu.VMEM((blocks.places, LANES), jnp.int32)] if settings.has_until else []),
    ]


class _State:
    """Online softmax of one tile after the other.

    `largest` is the score rounded up and `total` the weight, `[K, M, 128]`; `mixed` are values, `[K, M, W]`. Query m of a KV
    head is the token at place `m % places` for its query head `m // places`.
    """

    def __init__(
        self,
        settings: Settings,
        blocks: Blocks,
        tiles: Tiles,
        queries: Any,
        sinks: Any,
        slopes: Any,
        scales: Any,
        largest: Any,
        total: Any,
        mixed: Any,
        split: tuple[Any, ...],
        until: Any,
    ) -> None:
        self._settings, self._blocks, self._tiles = settings, blocks, tiles
        self._queries, self._sinks, self._slopes, self._scales = queries, sinks, slopes, scales
        self._largest, self._total, self._mixed = largest, total, mixed
        self._until = until
        if until is not None:
            split, self._lasts = split[:-1], split[-1]
        self._split = split

    def clear(self, places: Any) -> None:
        """Forget what the queries of some places, a slice, have seen."""
        parts = [pl.ds(0, self._mixed.shape[1])]
        if places.size < self._blocks.places:
            firsts = range(0, self._mixed.shape[1], self._blocks.places)
            parts = [pl.ds(first + places.start, places.size) for first in firsts]
        for head, part in itertools.product(range(self._settings.kv_heads), parts):
            fill(self._largest.at[head, part], UNSEEN)
            fill(self._total.at[head, part], 0.0)
            fill(self._mixed.at[head, part], 0.0)

    def results(self, head: int, queries: Any, lanes: Any) -> jax.Array:
        """The values of some queries divided by their weights. Sinks take part only now: they have no value."""
        total = self._total[head, queries]
        if self._sinks is not None:
            total = total + jnp.exp2(self._sinks[head, queries] - self._largest[head, queries])
        mixed: jax.Array = self._mixed[head, queries, lanes] / total
        return mixed if self._scales is None else mixed * self._scales[1, head]

    def add_block(self, tile: jax.Array, held: Any, begin: jax.Array) -> None:
        """Attend to the block at position `begin`."""
        if self._blocks.few:  # masks cost little here, and so does the code that has none
            unseen, distance = (of(tile, begin, _tokens(held)) for of in (self._unseen, self._slope_distance))
            for one in _heads(held, self._settings):
                self._add([one], unseen, distance)
            return
        all_keys, all_values = self._split
        for at, keys, values in _heads(held, self._settings):
            all_keys[at], all_values[at] = keys, values
        kv_heads, together = self._settings.kv_heads, self._settings.together

        # Of half a block one head follows the other: four take 2,793 bundles on v6e so, and 3,517 with all scores first.
        def add_all(*, masked: bool, tokens: int, in_turn: bool = False) -> None:
            unseen = self._unseen(tile, begin, tokens) if masked else None
            distance = self._slope_distance(tile, begin, tokens)
            unrolled = math.gcd(kv_heads, 4) if in_turn else together

            def add(index: jax.Array, _: None) -> None:
                numbers = [index * unrolled + offset for offset in range(unrolled)]
                heads = [(head, all_keys[head, :tokens], all_values[head, :tokens]) for head in numbers]
                for some in [[head] for head in heads] if in_turn else [heads]:
                    self._add(some, unseen, distance)

            lax.fori_loop(0, kv_heads // unrolled, add, None)

        # A prompt's tile is half a block or less, so that many blocks end with tokens that none of it sees.
        tokens = _tokens(held)
        half = tokens // 2 if tokens % (2 * LANES) == 0 else tokens
        partly = begin + tokens > self._first_sees(tile) + 1
        if self._settings.window is not None:
            partly |= begin < self._tiles.end[tile] - self._settings.window
        pl.when(jnp.logical_not(partly))(lambda: add_all(masked=False, tokens=tokens))
        ends_early = begin + half >= self._tiles.stop[tile]  # no token sees more: what is left out would add zeros
        if half < tokens:
            pl.when(ends_early)(lambda: add_all(masked=True, tokens=half, in_turn=True))
            partly &= jnp.logical_not(ends_early)
        pl.when(partly)(lambda: add_all(masked=True, tokens=tokens))

    def _add(
        self,
        heads: list[tuple[Any, jax.Array, jax.Array]],
        unseen: jax.Array | None,
        distance: jax.Array | None,
    ) -> None:
        """Attend to the keys and values of some KV heads, independent of one another."""

        def scores_of(head: Any, keys: jax.Array) -> jax.Array:
            scores = self._scores(head, product(self._queries[head], keys, axis=1))
            if distance is not None:
                scores += repeat(self._slopes[head], scores.shape[1]) * distance
            return scores if unseen is None else scores + unseen

        # All scores first: the compiler overlaps the weights of one head with the products of another only if they stand so.
        all_scores = [scores_of(head, keys) for head, keys, _ in heads]
        for (head, _, values), scores in zip(heads, all_scores, strict=True):
            state = (of.at[head] for of in (self._largest, self._total, self._mixed))
            accumulate(scores, values, *state, spare_columns=self._settings.spare_columns)

    def _unseen(self, tile: jax.Array, begin: jax.Array, tokens: int) -> jax.Array:
        """What to add to scores: -inf where a query does not see a key, 0 where it does, `[M, tokens]`."""
        if self._until is None:
            seen = self._distance(tile, begin, tokens) <= 0
        else:
            key = begin + lax.broadcasted_iota(jnp.int32, (self._apart, tokens), 1)
            seen = key <= repeat(self._last_seen(tile), tokens)
        if self._settings.window is not None:
            seen &= self._distance(tile, begin, tokens) > -self._settings.window
        return self._for_all(jnp.where(seen, 0.0, -jnp.inf))

    def _first_sees(self, tile: jax.Array) -> jax.Array:
        """The last position that a tile's first token sees, and so do all others."""
        return self._tiles.start[tile] if self._until is None else self._until[self._tiles.place[tile]]

    def _last_seen(self, tile: jax.Array) -> jax.Array:
        """The last position that each place sees, of equal columns, as `_distance` has rows."""
        places, first, end = self._blocks.places, self._tiles.place[tile], self._until.shape[0]

        def put(place: Any, _: None) -> None:
            last = self._until[jnp.minimum(first + place, end - 1)]  # behind a tile's tokens anything
            self._lasts[pl.ds(place, 1), :] = jnp.full((1, LANES), last, jnp.int32)

        lax.fori_loop(0, places, put, None)
        return jnp.broadcast_to(self._lasts[...], (self._apart, LANES))

    def _slope_distance(self, tile: jax.Array, begin: jax.Array, tokens: int) -> jax.Array | None:
        if self._slopes is None:
            return None
        return self._for_all(self._distance(tile, begin, tokens).astype(jnp.float32))

    def _distance(self, tile: jax.Array, begin: jax.Array, tokens: int) -> jax.Array:
        """Positions from each place to each key from `begin` on; above 0 for a key that is not seen."""
        shape = (self._apart, tokens)
        place = lax.broadcasted_iota(jnp.int32, shape, 0) if self._blocks.places > 1 else 0
        return begin + lax.broadcasted_iota(jnp.int32, shape, 1) - (self._tiles.start[tile] + place)

    @property
    def _apart(self) -> int:
        """Rows of what depends on the place alone: one for each, or where there is one place, for each query."""
        return self._blocks.places if self._blocks.places > 1 else int(self._mixed.shape[1])

    def _for_all(self, by_place: jax.Array) -> jax.Array:
        """For each query what its place has: the places of one query head after the other's, `[M, tokens]`."""
        return jnp.concatenate([by_place] * (self._mixed.shape[1] // self._apart))

    def _scores(self, head: Any, products: jax.Array) -> jax.Array:
        scale, soft_cap = self._settings.scale, self._settings.soft_cap
        if self._scales is not None:
            scale = scale * self._scales[0, head]
        if soft_cap is None:
            return products * (scale * LOG2_E)
        return (soft_cap * LOG2_E) * jnp.tanh(products * (scale / soft_cap))


def _tokens(held: Any) -> int:
    return int(held.shape[0] * held.shape[1])


def _heads(held: Any, settings: Settings) -> Iterator[tuple[int, jax.Array, jax.Array]]:
    """Each KV head's keys and values `[tokens, W]` of a block."""
    channels = channels_of(held, simulated=settings.simulated)
    vectors = settings.width // LANES
    for head in range(settings.kv_heads):
        if settings.side_by_side:  # W holds a key and its value, and queries are 0 where the value is
            both = next(channels)
            yield head, both, both
        else:
            keys, values = (_joined([next(channels) for _ in range(vectors)]) for _ in range(2))
            yield head, keys, values


def _joined(vectors: list[jax.Array]) -> jax.Array:
    return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=1)
