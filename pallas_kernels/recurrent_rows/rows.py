"""How a recurrent op goes through the rows of a step, whatever the recurrence: every row by itself, from its own state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Places = tuple[jax.Array, ...]
"""What the recurrence reads of each place, `[N, ...]` each; of one place, or of the places of a chunk, where it says so."""

Advance = Callable[[Places, jax.Array], tuple[jax.Array, jax.Array]]
"""From what is read of one place, or of a chunk, and the state before it: what comes out, in float32, and the state behind it."""


class Rows(NamedTuple):
    """The rows of a step: `slots` and `starts int32 [B]`, `offsets int32 [B + 1]`, the latter two as in `paged_attention`.

    A row goes on from the state in its slot, or from zeros where its sequence starts with it, and leaves its own there. No two
    rows that have tokens share a slot.
    """

    slots: jax.Array
    starts: jax.Array
    offsets: jax.Array

    @property
    def lengths(self) -> jax.Array:
        """How many tokens each row has."""
        return self.offsets[1:] - self.offsets[:-1]


def check_rows(rows: Rows) -> None:
    """`slots`, `starts` and `offsets` are of the same rows.

    Raises:
        ValueError: they are not.
    """
    count = rows.slots.shape[:1]
    wanted = Rows(count, count, tuple(size + 1 for size in count))  # type: ignore[arg-type]
    for name, found, shape in zip(Rows._fields, rows, wanted, strict=True):
        if found.dtype != jnp.int32 or found.shape != shape:
            axes = "B + 1" if name == "offsets" else "B"
            raise ValueError(
                f"{name} must be int32 [{axes}] for slots of shape {list(rows.slots.shape)}, got {found.dtype}{list(found.shape)}"
            )


def place_by_place(step: Advance, places: Places, states: jax.Array, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """The definition: one place after the other. Returns `[N, ...]`, zeros in padding, and the states by slot `[P, ...]`."""
    slots, starts, offsets = rows

    def advance(states: jax.Array, item: tuple[jax.Array, Places]) -> tuple[jax.Array, jax.Array]:
        number, values = item
        row = jnp.sum(offsets[1:] <= number)  # the rows that end before it; of padding all of them
        real, row = row < len(slots), jnp.minimum(row, len(slots) - 1)
        begins = (number == offsets[row]) & (starts[row] == 0)
        out, state = step(values, jnp.where(begins, 0.0, states[slots[row]]))
        states = states.at[jnp.where(real, slots[row], len(states))].set(state, mode="drop")
        return states, jnp.where(real, out, 0.0)

    numbers = jnp.arange(places[0].shape[0], dtype=jnp.int32)
    states, out = lax.scan(advance, states, (numbers, places))
    return out, states


def chunk_by_chunk(
    step: Advance, chunk: Advance, places: Places, states: jax.Array, rows: Rows, *, size: int
) -> tuple[jax.Array, jax.Array]:
    """As `place_by_place`, the rows of one place all at once by `step`, longer ones as `longer_rows` does."""
    count = places[0].shape[0]
    slots, starts, offsets = rows
    begins, single = offsets[:-1], rows.lengths == 1
    before = _chosen(starts > 0, states[slots], jnp.zeros((), states.dtype))
    first, after = jax.vmap(step)(tuple(x[jnp.minimum(begins, count - 1)] for x in places), before)
    out = jnp.zeros((count + size, *first.shape[1:]), first.dtype)
    out = out.at[jnp.where(single, begins, count + size)].set(first, mode="drop")
    states = states.at[jnp.where(single, slots, len(states))].set(after, mode="drop")
    return longer_rows(chunk, places, out, states, rows, size=size) if count > 1 else (out[:1], states)


def row_by_row(
    step: Advance, chunk: Advance, places: Places, states: jax.Array, rows: Rows, *, size: int
) -> tuple[jax.Array, jax.Array]:
    """As `chunk_by_chunk`, rows of one place one after the other too: of no other number than there are of them."""
    rows = _several(rows)
    slots, starts, offsets = rows
    count = places[0].shape[0]
    ends = jnp.cumsum(rows.lengths == 1)

    def advance(number: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out, states = carry
        row = jnp.sum(ends <= number)
        place, slot = offsets[row], slots[row]
        found, state = step(tuple(x[place] for x in places), jnp.where(starts[row] > 0, states[slot], 0.0))
        return out.at[place].set(found), states.at[slot].set(state)

    found, _ = jax.eval_shape(step, tuple(x[0] for x in places), states[0])
    out = jnp.zeros((count + size, *found.shape), found.dtype)
    out, states = lax.fori_loop(0, ends[-1], advance, (out, states))
    return longer_rows(chunk, places, out, states, rows, size=size) if count > 1 else (out[:1], states)


def token_by_token(step: Advance, places: Places, states: jax.Array, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """As `place_by_place`, of no more places than hold a token: one loop, of which every token of any row is a round."""
    slots, starts, offsets = _several(rows)
    count = len(places[0])
    if count == 1:
        places = tuple(jnp.pad(x, ((0, 1), *((0, 0),) * (x.ndim - 1))) for x in places)

    def advance(place: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out, states = carry
        row = jnp.sum(offsets[1:] <= place)
        begins, slot = (place == offsets[row]) & (starts[row] == 0), slots[row]
        found, state = step(tuple(x[place] for x in places), jnp.where(begins, 0.0, states[slot]))
        return out.at[place].set(found), states.at[slot].set(state)

    found, _ = jax.eval_shape(step, tuple(x[0] for x in places), states[0])
    out = jnp.zeros((len(places[0]), *found.shape), found.dtype)
    out, states = lax.fori_loop(0, offsets[-1], advance, (out, states))
    return out[:count], states


def _several(rows: Rows) -> Rows:
    """Two rows at least. Of a single one XLA would know that it is row 0, and make other loops of it, which round otherwise."""
    if len(rows.slots) > 1:
        return rows
    modes = ("constant", "constant", "edge")
    return Rows(*(jnp.pad(x, (0, 1), mode) for x, mode in zip(rows, modes, strict=True)))


def longer_rows(
    chunk: Advance, places: Places, out: jax.Array, states: jax.Array, rows: Rows, *, size: int
) -> tuple[jax.Array, jax.Array]:
    """Rows of more than one place, `size` places after the other by `chunk`, in `out [N + size, ...]` and the states by slot.

    Chunks begin where their row begins, so that a row's numbers do not depend on its neighbours. Of the places of a last chunk
    that are not the row's all values are 0: such a place must leave the state as it is. There are as many chunks as the rows
    need: a step of rows of one place has none. Returns `[N, ...]` and the states.
    """
    slots, starts, offsets = rows
    lengths, begins = rows.lengths, offsets[:-1]
    padded = tuple(jnp.pad(x, ((0, size), *((0, 0),) * (x.ndim - 1))) for x in places)
    ends = jnp.cumsum(jnp.where(lengths > 1, -(-lengths // size), 0))

    def advance(number: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out, states = carry
        row = jnp.sum(ends <= number)
        before = number - jnp.where(row == 0, 0, ends[row - 1])
        begin = begins[row] + before * size
        mine = jnp.arange(size) < lengths[row] - before * size
        values = tuple(
            _chosen(mine, x, jnp.zeros_like(x)) for x in (lax.dynamic_slice_in_dim(x, begin, size) for x in padded)
        )
        starting = (before == 0) & (starts[row] == 0)
        found, state = chunk(values, jnp.where(starting, 0.0, states[slots[row]]))
        found = _chosen(mine, found, lax.dynamic_slice_in_dim(out, begin, size))
        return lax.dynamic_update_slice_in_dim(out, found, begin, axis=0), states.at[slots[row]].set(state)

    out, states = lax.fori_loop(0, ends[-1], advance, (out, states))
    return out[: len(out) - size], states


def causal_decays(logs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What is left of a state over the places of a chunk, whose decays have these logarithms, float32 `[C, H]`.

    Returns their sums up to and with each place, `[C, H]`, and what place `i` sees of what place `j` wrote, `[H, C, C]`: 0 where
    `j` comes behind `i`.
    """
    sums = jnp.cumsum(logs, axis=0)
    between = (sums[:, None] - sums[None]).transpose(2, 0, 1)
    return sums, jnp.exp(jnp.where(jnp.tri(logs.shape[0], dtype=bool), between, -jnp.inf))


def _chosen(which: jax.Array, here: jax.Array, there: jax.Array) -> jax.Array:
    return jnp.where(which.reshape(-1, *(1,) * (here.ndim - 1)), here, there)


def as_float32(*arrays: jax.Array) -> Sequence[jax.Array]:
    """What states are computed in, whatever comes in."""
    return tuple(array.astype(jnp.float32) for array in arrays)
