"""A chunk of a recurrence on a TPU: some tokens of one row, in VMEM.

Each token sees the ones before it as in attention, less what is forgotten between the two, and what was before the chunk in the
state. What the tokens of a delta rule learn depends on one another, and is found token by token in small blocks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.recurrence_tpu import columns
from pallas_kernels.storage import LANES

CHUNK = 64
"""Tokens. What each costs in the sums over its chunk grows with their number, what a state costs shrinks."""
TOGETHER = 8
"""Tiles that are computed in one pass of a loop, at most: each waits for its own numbers most of the time."""
BLOCK = 16
"""Tokens of a chunk that learn one after the other; those behind them learn of all of them at once, by a product."""
Terms = tuple[jax.Array, ...]
"""What a matrix is the sum of: itself in float32, or two matrices of bfloat16, which leave out 2^-17 of a number at most."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is fixed when the kernel is compiled.

    `learns`: what is taken up is the value less what the state has for the key; `of_tile` heads share a tile; products are
    `exact`, or of bfloat16: those of what is learnt of two terms for each number.
    """

    learns: bool
    of_tile: int
    exact: bool
    simulated: bool


def advance(settings: Settings, tokens: list[Any], results: Any, turned: Any, state: Any) -> None:
    """A chunk of one row: places that are not the row's hold zeros and change nothing."""
    queries, keys, values, heads = (Places(x, simulated=settings.simulated) for x in tokens)
    asked = Places(results, simulated=settings.simulated)
    count, tiles = tokens[0].shape[1], tokens[2].shape[1]
    shared, of_tile = tiles // count, settings.of_tile
    keys_together, tiles_together = together(count, tiles)

    below = jnp.zeros((LANES - CHUNK, turned.shape[1]), jnp.float32)
    logs, rates = (jnp.concatenate([heads[number], below]).T for number in range(2))  # by head, [heads, 128]
    i, j = (lax.broadcasted_iota(jnp.int32, (LANES, LANES), axis) for axis in range(2))
    turned[0] = _product(logs, (i <= j).astype(jnp.float32), exact=True)  # sums up to and with each place
    turned[1] = rates
    lane = lax.broadcasted_iota(jnp.int32, (CHUNK, LANES), 1)
    i, j = (lax.broadcasted_iota(jnp.int32, (CHUNK, CHUNK), axis) for axis in range(2))
    product = functools.partial(_product, exact=settings.exact)
    split = functools.partial(terms, exact=settings.exact)

    def numbers(tile: jax.Array, which: int) -> list[jax.Array]:
        """Of each head of a tile, sums or rates by place, `[1, 128]`."""
        return [turned[which, pl.ds(tile * of_tile + number, 1)] for number in range(of_tile)]

    def key_of(number: jax.Array) -> _Key:
        k, q = keys[number], queries[number]
        across, k_terms = k.T, split(k)
        alike = multiply(k_terms, split(across)) if settings.learns else None
        return _Key(q, k_terms, across, product(q, across), alike)

    def begin(key: _Key, tile: jax.Array) -> _Tile:
        """All of a tile but what its tokens take up of one another."""
        before, sums_of = state[tile], numbers(tile, 0)
        down = [columns(row)[:CHUNK] for row in sums_of]
        sums = _side_by_side(down, lane)
        rates = _side_by_side([columns(row)[:CHUNK] for row in numbers(tile, 1)], lane)
        decays = [
            jnp.exp(jnp.where(i >= j, column[:, :CHUNK] - row[:, :CHUNK], -jnp.inf))
            for column, row in zip(down, sums_of, strict=True)
        ]
        since, value, matrix = jnp.exp(sums), values[tile], None
        if key.alike is not None:
            value -= since * multiply(key.k, split(before))
            matrix = key.alike * decays[0] * rates[:, :CHUNK]
        return _Tile(key, before, sums, decays, since * product(key.q, before), matrix, rates * value)

    def end(begun: _Tile, taken: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What comes out, and the state behind the chunk."""
        out, sums, last = begun.asked, begun.sums, begun.sums[CHUNK - 1 :]
        for number, decay in enumerate(begun.decays):
            own = taken if of_tile == 1 else jnp.where(_of_head(lane, number, of_tile), taken, 0.0)
            out += product(begun.key.seen * decay, own)
        return out, jnp.exp(last) * begun.before + product(begun.key.across, taken * jnp.exp(last - sums))

    def advance_keys(number: jax.Array, _: None) -> None:
        first = number * keys_together
        of_keys = [key_of(first + member) for member in range(keys_together)]

        def advance_tiles(number: jax.Array, _: None) -> None:
            """All is read before anything is written, and tiles go step by step together, so that their latencies overlap."""
            chosen = [
                (first + member) * shared + number * tiles_together + tile
                for member in range(keys_together)
                for tile in range(tiles_together)
            ]
            begun = [begin(of_keys[place // tiles_together], tile) for place, tile in enumerate(chosen)]
            taken = [tile.given for tile in begun]
            matrices = [tile.matrix for tile in begun if tile.matrix is not None]
            if matrices:
                taken = _solve(matrices, taken, split)
            ended = [end(*both) for both in zip(begun, taken, strict=True)]
            for tile, (out, after) in zip(chosen, ended, strict=True):
                asked[tile], state[tile] = out, after

        lax.fori_loop(0, shared // tiles_together, advance_tiles, None)

    lax.fori_loop(0, count // keys_together, advance_keys, None)


def together(keys: int, tiles: int) -> tuple[int, int]:
    """How many heads of keys are computed in one pass of a loop, and how many tiles of each."""
    shared = tiles // keys
    of_key = math.gcd(shared, TOGETHER)
    return (math.gcd(keys, TOGETHER // of_key) if of_key == shared else 1), of_key


class _Key(NamedTuple):
    """Of a head of keys in a chunk: queries `[C, S]`, keys in terms and turned `[S, C]`, and what both see of keys, `[C, C]`."""

    q: jax.Array
    k: Terms
    across: jax.Array
    seen: jax.Array
    alike: jax.Array | None


class _Tile(NamedTuple):
    """A tile in a chunk: the state before, sums of decays `[C, 128]` and decays `[C, C]` by head, what queries find in the state.

    What its tokens take up is `given`, or with a `matrix` what `_solve` makes of the two.
    """

    key: _Key
    before: jax.Array
    sums: jax.Array
    decays: list[jax.Array]
    asked: jax.Array
    matrix: jax.Array | None
    given: jax.Array


def _solve(matrices: list[jax.Array], given: list[jax.Array], split: Callable[[jax.Array], Terms]) -> list[jax.Array]:
    """Every `x` with `x + tril(matrix, -1) x = given`, `[C, C]` and `[C, 128]`, all of them step by step together."""
    some = 8  # rows of a vector
    place = lax.broadcasted_iota(jnp.int32, (some, LANES), 0)
    found: list[list[jax.Array]] = [[] for _ in given]
    rest = list(given)
    for start in range(0, CHUNK, BLOCK):
        blocks = [[x[at : at + some] for at in range(0, BLOCK, some)] for x in rest]
        for token in range(BLOCK):
            number, member = divmod(token, some)
            for later in range(number, BLOCK // some):
                row, column = start + later * some, start + token
                for matrix, parts in zip(matrices, blocks, strict=True):
                    by = jnp.broadcast_to(matrix[row : row + some, column : column + 1], (some, LANES))
                    if later == number:
                        by = jnp.where(place > member, by, 0.0)
                    parts[later] = parts[later] - by * parts[number][member : member + 1]
        end = start + BLOCK
        for index, (matrix, parts) in enumerate(zip(matrices, blocks, strict=True)):
            found[index] += parts
            if end < CHUNK:
                of_block = multiply(split(matrix[end:, start:end]), split(jnp.concatenate(parts)))
                rest[index] = rest[index][BLOCK:] - of_block
    return [jnp.concatenate(parts) for parts in found]


def _side_by_side(of_heads: list[jax.Array], lane: jax.Array) -> jax.Array:
    """Of each head's `[C, 128]` the lanes of its channels."""
    found = of_heads[0]
    for number, x in enumerate(of_heads[1:], 1):
        found = jnp.where(lane >= number * (LANES // len(of_heads)), x, found)
    return found


def _of_head(lane: jax.Array, number: int, of_tile: int) -> jax.Array:
    return lane // (LANES // of_tile) == number


def _product(a: jax.Array, b: jax.Array, *, exact: bool) -> jax.Array:
    if exact:
        return jnp.dot(a, b, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
    return jnp.dot(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), preferred_element_type=jnp.float32)


def terms(x: jax.Array, *, exact: bool) -> Terms:
    """`x` as `multiply` takes it."""
    if exact:
        return (x,)
    high = x.astype(jnp.bfloat16)
    return high, (x - high.astype(jnp.float32)).astype(jnp.bfloat16)


def multiply(a: Terms, b: Terms) -> jax.Array:
    """The product in float32, less that of the smaller terms of both."""
    if len(a) == 1:
        return _product(a[0], b[0], exact=True)
    (a_high, a_low), (b_high, b_low) = a, b
    product = functools.partial(_product, exact=False)
    return product(a_high, b_high) + (product(a_high, b_low) + product(a_low, b_high))


class Places:
    """Tokens `[C, X, 128]` in VMEM, of which one `[C, 128]` is read or written after the other."""

    def __init__(self, held: Any, *, simulated: bool) -> None:
        self._held, self._simulated = held, simulated

    def _at(self, number: Any) -> tuple[Any, Any]:
        if self._simulated:  # TPU interpret mode knows no reshaped references
            return self._held, (slice(None), number)
        count, each, lanes = self._held.shape
        if lanes != LANES:
            return self._held, (slice(None), number)
        return self._held.reshape(count * each, lanes), (pl.ds(number, count, each),)

    def __getitem__(self, number: Any) -> jax.Array:
        held, at = self._at(number)
        found: jax.Array = held[at]
        return found

    def __setitem__(self, number: Any, values: jax.Array) -> None:
        held, at = self._at(number)
        held[at] = values
