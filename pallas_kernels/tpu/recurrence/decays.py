"""What a chunk's tokens see of one another and of the state before it on a TPU, less what is forgotten, by head or by channel."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.recurrent_rows.form import Form
from pallas_kernels.storage import LANES, SUBLANES
from pallas_kernels.tpu.recurrence.learnt import BLOCK, Terms, multiply, product, terms
from pallas_kernels.tpu.recurrence.single import columns

CHUNK = 64
"""Tokens. What each costs in the sums over its chunk grows with their number, what a state costs shrinks."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is fixed when the kernel is compiled.

    `of_tile` heads share a tile; products are `exact`, or of bfloat16: those of what is learnt of two terms for each number.
    """

    form: Form
    of_tile: int
    exact: bool
    simulated: bool


class Begun(NamedTuple):
    """All of a tile in a chunk but what its tokens take up of one another.

    That is `given`, or with a `matrix` what `solve` makes of the two. `asked [C, 128]`: what queries find in the state before;
    `seen`: by head, what they see of each place, `[C, C]`; `kept [S, 128]`: what is left of that state; `written [S, C]`: where
    places write what they take up, of which `left [C, 128]` remains, or all of it.
    """

    asked: jax.Array
    seen: list[jax.Array]
    kept: jax.Array
    written: jax.Array
    left: jax.Array | None
    matrix: jax.Array | None
    given: jax.Array


class Key(NamedTuple):
    """A head of keys: queries and keys `[C, S]`; with decays by head keys turned `[S, C]` as well, and what both see of
    keys, `[C, C]`.
    """

    q: jax.Array
    k: Terms
    across: jax.Array | None = None
    seen: jax.Array | None = None
    alike: jax.Array | None = None


class ByHead:
    """Decays that all channels of a head share."""

    def __init__(self, settings: Settings, places: Sequence[Places], turned: Any, state: Any) -> None:
        self._settings, self._turned, self._state = settings, turned, state
        self._queries, self._keys, self._values, heads = places
        logs, rates = _by_place(heads, turned, 0), _by_place(heads, turned, 1)
        i, j = _pairs(LANES)
        turned[0] = product(logs, (i <= j).astype(jnp.float32), exact=True)  # sums up to and with each place
        turned[1] = rates

    def key(self, number: jax.Array) -> Key:
        """What the tiles of a head of keys share."""
        k, q = self._keys[number], self._queries[number]
        split = functools.partial(terms, exact=self._settings.exact)
        across, k_terms = k.T, split(k)
        alike = multiply(k_terms, split(across)) if self._settings.form.learns else None
        return Key(q, k_terms, across, product(q, across, exact=self._settings.exact), alike)

    def begin(self, key: Key, tile: jax.Array) -> Begun:
        """A tile by its number."""
        exact, before, sums_of = self._settings.exact, self._state[tile], self._numbers(tile, 0)
        down = [columns(row)[:CHUNK] for row in sums_of]
        sums = _side_by_side(down)
        rates = _side_by_side([columns(row)[:CHUNK] for row in self._numbers(tile, 1)])
        i, j = _pairs(CHUNK)
        decays = [
            jnp.exp(jnp.where(i >= j, column[:, :CHUNK] - row[:, :CHUNK], -jnp.inf))
            for column, row in zip(down, sums_of, strict=True)
        ]
        since, last, value, matrix = jnp.exp(sums), sums[CHUNK - 1 :], self._values[tile], None
        assert key.seen is not None
        assert key.across is not None
        if key.alike is not None:
            value -= since * multiply(key.k, terms(before, exact=exact))
            matrix = key.alike * decays[0] * rates[:, :CHUNK]
        return Begun(
            asked=since * product(key.q, before, exact=exact),
            seen=[key.seen * decay for decay in decays],
            kept=jnp.exp(last) * before,
            written=key.across,
            left=jnp.exp(last - sums),
            matrix=matrix,
            given=rates * value,
        )

    def _numbers(self, tile: jax.Array, which: int) -> list[jax.Array]:
        """Of each head of a tile, sums or rates by place, `[1, 128]`."""
        of_tile = self._settings.of_tile
        return [self._turned[which, pl.ds(tile * of_tile + number, 1)] for number in range(of_tile)]


class ByChannel:
    """Decays of each row of a head's state, of a rule that learns; a head has a tile and keys of its own.

    What is left between two places of a channel is the product of two factors, of what is left from the first one to a place
    between them and on from there; each is 1 at most, so that neither leaves float32. Between the places of a block of `BLOCK`
    there is none, and theirs is made pair by pair.
    """

    def __init__(self, settings: Settings, places: Sequence[Places], turned: Any, state: Any) -> None:
        self._exact, self._turned, self._state = settings.exact, turned, state
        self._queries, self._keys, self._values, heads, self._logs = places
        turned[0] = _by_place(heads, turned, 0)

    def key(self, number: jax.Array) -> Key:
        """What the tiles of a head of keys share."""
        return Key(self._queries[number], (self._keys[number],))

    def begin(self, key: Key, tile: jax.Array) -> Begun:
        """A tile by its number."""
        q, (k,), before, exact = key.q, key.k, self._state[tile], self._exact
        i, j = _pairs(CHUNK)
        sums = product((i >= j).astype(jnp.float32), self._logs[tile], exact=True)
        rates = columns(self._turned[0, pl.ds(tile, 1)])[:CHUNK]
        since, last = jnp.exp(sums), sums[CHUNK - 1 :]
        alike, seen = zip(*(self._block(q, k, sums, start) for start in range(0, CHUNK, BLOCK)), strict=True)
        value = self._values[tile] - multiply(terms(since * k, exact=exact), terms(before, exact=exact))
        return Begun(
            asked=product(since * q, before, exact=exact),
            seen=[jnp.concatenate(seen)],
            kept=columns(jnp.exp(last)) * before,
            written=(k * jnp.exp(last - sums)).T,
            left=None,
            matrix=jnp.concatenate(alike) * rates[:, :CHUNK],
            given=rates * value,
        )

    def _block(self, q: jax.Array, k: jax.Array, sums: jax.Array, start: int) -> tuple[jax.Array, jax.Array]:
        """What the keys and queries of a block's places see of the keys of all places, `[BLOCK, C]` each."""
        own = slice(start, start + BLOCK)
        alike = seen = jnp.zeros((BLOCK, CHUNK), jnp.float32)
        if start:
            between = sums[start - 1 : start]
            on = jnp.exp(sums[own] - between)
            before = lax.broadcasted_iota(jnp.int32, k.shape, 0) < start
            written = k * jnp.exp(jnp.where(before, between - sums, -jnp.inf))
            split = functools.partial(terms, exact=self._exact)
            alike = multiply(split(k[own] * on), split(written), turned=True)
            seen = product(q[own] * on, written, exact=self._exact, turned=True)
        lane = lax.broadcasted_iota(jnp.int32, (SUBLANES, CHUNK), 1)
        row = lax.broadcasted_iota(jnp.int32, (SUBLANES, k.shape[1]), 0)
        firsts = range(0, BLOCK, SUBLANES)  # rows of vectors
        parts = {first: [x[first : first + SUBLANES] for x in (alike, seen)] for first in firsts}
        for other in range(BLOCK):
            place = start + other
            before, key = (jnp.broadcast_to(x[place : place + 1], row.shape) for x in (sums, k))
            for first in range(other // SUBLANES * SUBLANES, BLOCK, SUBLANES):
                rows = slice(start + first, start + first + SUBLANES)
                between = sums[rows] - before
                if first <= other:
                    between = jnp.where(row >= other - first, between, -jnp.inf)
                written = jnp.exp(between) * key
                parts[first] = [
                    jnp.where(lane == place, jnp.sum(written * x[rows], axis=1, keepdims=True), numbers)
                    for x, numbers in zip((k, q), parts[first], strict=True)
                ]
        of_keys, of_queries = zip(*parts.values(), strict=True)
        return jnp.concatenate(of_keys), jnp.concatenate(of_queries)


def _pairs(size: int) -> tuple[jax.Array, jax.Array]:
    i, j = (lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in range(2))
    return i, j


def _by_place(heads: Places, turned: Any, number: int) -> jax.Array:
    """Numbers of `[C, heads]` by head, `[heads, 128]`."""
    below = jnp.zeros((LANES - CHUNK, turned.shape[1]), jnp.float32)
    return jnp.concatenate([heads[number], below]).T


def _side_by_side(of_heads: list[jax.Array]) -> jax.Array:
    """Of each head's `[C, 128]` the lanes of its channels."""
    found = of_heads[0]
    lane = lax.broadcasted_iota(jnp.int32, found.shape, 1)
    for number, x in enumerate(of_heads[1:], 1):
        found = jnp.where(lane >= number * (LANES // len(of_heads)), x, found)
    return found


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
