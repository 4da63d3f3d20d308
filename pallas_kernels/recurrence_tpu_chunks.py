"""Recurrences on a TPU, rows of several tokens: a row's state stays in VMEM while its tokens pass by, some at a time.

Of such a chunk each token sees the ones before it as in attention, less what is forgotten between the two, and what was before
the chunk in the state. What the tokens of a delta rule learn depends on one another, and is found token by token, in float32.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.recurrence import Rows
from pallas_kernels.recurrence_tpu import by_head, columns
from pallas_kernels.storage import LANES
from pallas_kernels.tpu_chip import MIB, SIMULATED, Chip, target_chip

CHUNK = 64
"""Tokens. What each costs in the sums over its chunk grows with their number, what a state costs shrinks."""
TOGETHER = 2
"""Tiles that are computed in one pass of a loop."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is fixed when the kernel is compiled.

    `learns`: what is taken up is the value less what the state has for the key; `of_tile` heads share a tile; products other than
    those of what is learnt are `exact`, or of bfloat16.
    """

    learns: bool
    of_tile: int
    exact: bool
    simulated: bool


def fits(keys: int, states: Any) -> bool:
    """Whether chunks of so many heads of keys and a state `[P, T, S, 128]` fit the chip's VMEM: not all models' on v4."""
    chip = target_chip()
    return chip is not None and _vmem_bytes(keys, states) <= chip.vmem_bytes * 3 // 4


def longer_rows(
    learns: bool,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    logs: jax.Array,
    rates: jax.Array,
    out: jax.Array,
    states: jax.Array,
    rows: Rows,
    *,
    precision: jax.lax.Precision,
) -> tuple[jax.Array, jax.Array]:
    """Rows of more than one token, in the results and states of `rows_of_one_token`.

    Args:
        learns: as in `Settings`.
        q: `[N, K, S]`, what states are asked with.
        k: the same, by which they take values up.
        v: `[N, T, 128]`.
        logs: of decays, float32 `[N, heads]`.
        rates: `[N, heads]`, of values.
        out: float32 `[N, T, 128]`.
        states: float32 `[P, T, S, 128]`.
        rows: of the step.
        precision: of the products but those of what is learnt.

    Returns:
        `out` and the states, in place.
    """
    chip = target_chip()
    assert chip is not None  # `refused` has seen to it
    settings = Settings(
        learns=learns,
        of_tile=rates.shape[1] // v.shape[1],
        exact=precision != lax.Precision.DEFAULT,
        simulated=chip.name == SIMULATED,
    )
    tokens = [*(x.astype(jnp.float32) for x in (q, k, v)), by_head(logs, rates)]
    return _call(chip, settings, tokens, out, states, rows)


@functools.partial(jax.jit, static_argnums=(0, 1))  # the layers of a model share what takes seconds to trace
def _call(
    chip: Chip, settings: Settings, tokens: list[jax.Array], out: jax.Array, states: jax.Array, rows: Rows
) -> tuple[jax.Array, jax.Array]:
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    heads = tokens[3].shape[2]
    first = 3 + len(tokens)
    result: tuple[jax.Array, jax.Array] = pl.pallas_call(
        functools.partial(_kernel, settings=settings),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(1,),
            in_specs=[anywhere] * (len(tokens) + 2),
            out_specs=[anywhere] * 2,
            scratch_shapes=[
                pltpu.SMEM(rows.slots.shape, jnp.int32),
                [pltpu.VMEM((2, CHUNK, *x.shape[1:]), jnp.float32) for x in tokens],
                pltpu.VMEM((2, CHUNK, *out.shape[1:]), jnp.float32),
                pltpu.VMEM((2, heads, LANES), jnp.float32),
                pltpu.VMEM(states.shape[1:], jnp.float32),
                *[pltpu.SemaphoreType.DMA((2,))] * 2,
                pltpu.SemaphoreType.DMA,
            ],
        ),
        out_shape=tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (out, states)),
        input_output_aliases={first: 0, first + 1: 1},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",),
            disable_bounds_checks=True,  # simulated kernels are checked
            vmem_limit_bytes=min(chip.vmem_bytes * 7 // 8, _vmem_bytes(tokens[0].shape[1], states) + 8 * MIB),
        ),
        name="longer_rows",
    )(rows.slots, rows.starts, rows.offsets, *tokens, out, states)
    return result


def _kernel(slots: Any, starts: Any, offsets: Any, *refs: Any, settings: Settings) -> None:
    """Refs: tokens, results, states, both again; scratch."""
    tokens, (out, pool) = refs[:4], refs[6:8]
    listed, held, results, turned, state, arrived, left, moved = refs[8:]

    def list_row(row: jax.Array, count: jax.Array) -> jax.Array:
        longer = offsets[row + 1] - offsets[row] > 1

        @pl.when(longer)
        def add() -> None:
            listed[count] = row

        return count + longer.astype(jnp.int32)

    count = lax.fori_loop(0, slots.shape[0], list_row, 0)

    def places(row: jax.Array, chunk: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The first place of a chunk, and how many it has."""
        first = offsets[row] + chunk * CHUNK
        return first, jnp.minimum(CHUNK, offsets[row + 1] - first)

    def arriving(row: jax.Array, chunk: jax.Array, buffer: jax.Array) -> list[Any]:
        first, size = places(row, chunk)
        return [
            pltpu.make_async_copy(source.at[pl.ds(first, size)], target.at[buffer, pl.ds(0, size)], arrived.at[buffer])
            for source, target in zip(tokens, held, strict=True)
        ]

    def fetch(row: jax.Array, chunk: jax.Array, buffer: jax.Array) -> None:
        for copy in arriving(row, chunk, buffer):
            copy.start()

    def leaving(row: jax.Array, chunk: jax.Array, buffer: jax.Array) -> Any:
        first, size = places(row, chunk)
        return pltpu.make_async_copy(results.at[buffer, pl.ds(0, size)], out.at[pl.ds(first, size)], left.at[buffer])

    def advance_row(index: jax.Array, done: jax.Array) -> jax.Array:
        row = listed[index]
        slot, chunks = slots[row], pl.cdiv(offsets[row + 1] - offsets[row], CHUNK)
        following = listed[jnp.minimum(index + 1, count - 1)]

        @pl.when(starts[row] > 0)
        def load() -> None:
            copy = pltpu.make_async_copy(pool.at[slot], state, moved)
            copy.start()
            copy.wait()

        @pl.when(starts[row] == 0)
        def clear() -> None:
            def clear_tile(tile: jax.Array, _: None) -> None:
                state[tile] = jnp.zeros(state.shape[1:], state.dtype)

            lax.fori_loop(0, state.shape[0], clear_tile, None)

        def advance_chunk(chunk: jax.Array, _: None) -> None:
            buffer = (done + chunk) % 2
            within = chunk + 1 < chunks
            pl.when(within | (index + 1 < count))(
                lambda: fetch(jnp.where(within, row, following), jnp.where(within, chunk + 1, 0), 1 - buffer)
            )
            for arrival in arriving(row, chunk, buffer):
                arrival.wait()
            size = places(row, chunk)[1]

            def clear_token(place: jax.Array, _: None) -> None:
                for x in held:
                    x[buffer, place] = jnp.zeros(x.shape[2:], x.dtype)

            lax.fori_loop(size, CHUNK, clear_token, None)
            pl.when(chunk > 1)(lambda: leaving(row, chunk - 2, buffer).wait())
            _advance(settings, [x.at[buffer] for x in held], results.at[buffer], turned, state)
            leaving(row, chunk, buffer).start()

        lax.fori_loop(0, chunks, advance_chunk, None)
        copy = pltpu.make_async_copy(state, pool.at[slot], moved)
        copy.start()
        for before in (2, 1):
            chunk = chunks - before
            pl.when(chunk >= 0)(functools.partial(lambda chunk: leaving(row, chunk, (done + chunk) % 2).wait(), chunk))
        copy.wait()
        return done + chunks

    @pl.when(count > 0)
    def advance() -> None:
        zero = jnp.int32(0)
        fetch(listed[0], zero, zero)
        lax.fori_loop(0, count, advance_row, zero)


def _advance(settings: Settings, tokens: list[Any], results: Any, turned: Any, state: Any) -> None:
    """A chunk of one row: places that are not the row's hold zeros and change nothing."""
    queries, keys, values, heads = (Places(x, simulated=settings.simulated) for x in tokens)
    asked = Places(results, simulated=settings.simulated)
    count, tiles = tokens[0].shape[1], tokens[2].shape[1]
    shared, of_tile = tiles // count, settings.of_tile
    together = math.gcd(shared, TOGETHER)

    below = jnp.zeros((LANES - CHUNK, turned.shape[1]), jnp.float32)
    logs, rates = (jnp.concatenate([heads[number], below]).T for number in range(2))  # by head, [heads, 128]
    i, j = (lax.broadcasted_iota(jnp.int32, (LANES, LANES), axis) for axis in range(2))
    turned[0] = _product(logs, (i <= j).astype(jnp.float32), exact=True)  # sums up to and with each place
    turned[1] = rates
    lane = lax.broadcasted_iota(jnp.int32, (CHUNK, LANES), 1)
    i, j = (lax.broadcasted_iota(jnp.int32, (CHUNK, CHUNK), axis) for axis in range(2))
    product = functools.partial(_product, exact=settings.exact)

    def advance_key(key: jax.Array, _: None) -> None:
        k, q = keys[key], queries[key]
        across = k.T
        seen = product(q, across)
        alike = _product(k, across, exact=True) if settings.learns else None

        def numbers(tile: jax.Array, which: int) -> list[jax.Array]:
            """Of each head of a tile, sums or rates by place, `[1, 128]`."""
            return [turned[which, pl.ds(tile * of_tile + number, 1)] for number in range(of_tile)]

        def advance_tile(
            before: jax.Array, value: jax.Array, sums_of: list[jax.Array], rates_of: list[jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            """What comes out, and the state behind the chunk."""
            down = [columns(row)[:CHUNK] for row in sums_of]
            sums = _side_by_side(down, lane)
            rates = _side_by_side([columns(row)[:CHUNK] for row in rates_of], lane)
            decays = [
                jnp.exp(jnp.where(i >= j, column[:, :CHUNK] - row[:, :CHUNK], -jnp.inf))
                for column, row in zip(down, sums_of, strict=True)
            ]
            since, last = jnp.exp(sums), sums[CHUNK - 1 :]
            if alike is not None:
                value -= since * _product(k, before, exact=True)
            taken = rates * value
            if alike is not None:
                taken = _solve(alike * decays[0] * rates[:, :CHUNK], taken)
            out = since * product(q, before)
            for number, decay in enumerate(decays):
                own = taken if of_tile == 1 else jnp.where(_of_head(lane, number, of_tile), taken, 0.0)
                out += product(seen * decay, own)
            return out, jnp.exp(last) * before + product(across, taken * jnp.exp(last - sums))

        def advance_tiles(number: jax.Array, _: None) -> None:
            """All is read before anything is written, so that the tiles' latencies overlap."""
            tiles = [key * shared + number * together + member for member in range(together)]
            given = [(state[tile], values[tile], numbers(tile, 0), numbers(tile, 1)) for tile in tiles]
            for tile, (out, after) in zip(tiles, [advance_tile(*x) for x in given], strict=True):
                asked[tile], state[tile] = out, after

        lax.fori_loop(0, shared // together, advance_tiles, None)

    lax.fori_loop(0, count, advance_key, None)


def _solve(alike: jax.Array, given: jax.Array) -> jax.Array:
    """`x` with `x + tril(alike, -1) x = given`, `[C, C]` and `[C, 128]`: token by token, in rows of eight."""
    some = 8
    parts = [given[at : at + some] for at in range(0, len(given), some)]
    place = lax.broadcasted_iota(jnp.int32, (some, LANES), 0)
    for number in range(len(parts)):
        for member in range(some):
            token = number * some + member
            learnt = parts[number][member : member + 1]
            for later in range(number, len(parts)):
                by = jnp.broadcast_to(alike[later * some : (later + 1) * some, token : token + 1], (some, LANES))
                if later == number:
                    by = jnp.where(place > member, by, 0.0)
                parts[later] = parts[later] - by * learnt
    return jnp.concatenate(parts)


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


def _vmem_bytes(keys: int, states: Any) -> int:
    """Of two chunks, their results and a state."""
    _, tiles, size, lanes = states.shape
    return 4 * (tiles * size * lanes + 2 * CHUNK * (2 * keys * size + 2 * tiles * lanes + 8 * LANES))
