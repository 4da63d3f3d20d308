"""How a recurrent op goes through the rows of a step, whatever the recurrence: every row by itself, from its own state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

Places = tuple[jax.Array, ...]
"""What the recurrence reads of each place, `[N, ...]` each; of one place, or of the places of a chunk, where it says so."""

Advance = Callable[[Places, jax.Array], tuple[jax.Array, jax.Array]]
"""From what is read of one place, or of a chunk, and the state before it: what comes out, in float32, and the state behind it."""


def check_offsets(offsets: jax.Array, states: jax.Array) -> None:
    """`offsets int32 [B + 1]` are those of the rows of `states [B, ...]`.

    Raises:
        ValueError: they are not.
    """
    if offsets.dtype != jnp.int32 or offsets.shape != (states.shape[0] + 1,):
        raise ValueError(
            f"offsets must be int32 [B+1] for states of {states.shape[0]} rows, got {offsets.dtype}{list(offsets.shape)}"
        )


def place_by_place(step: Advance, places: Places, states: jax.Array, offsets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The definition: one place after the other. Returns `[N, ...]`, zeros in padding, and the rows' states `[B, ...]`."""

    def advance(states: jax.Array, item: tuple[jax.Array, Places]) -> tuple[jax.Array, jax.Array]:
        number, values = item
        row = jnp.sum(offsets[1:] <= number)  # the rows that end before it; of padding all of them
        out, state = step(values, states[jnp.minimum(row, states.shape[0] - 1)])
        return states.at[row].set(state, mode="drop"), jnp.where(number < offsets[-1], out, 0.0)

    numbers = jnp.arange(places[0].shape[0], dtype=jnp.int32)
    states, out = lax.scan(advance, states, (numbers, places))
    return out, states


def chunk_by_chunk(
    step: Advance, chunk: Advance, places: Places, states: jax.Array, offsets: jax.Array, *, size: int
) -> tuple[jax.Array, jax.Array]:
    """As `place_by_place`, the rows of one place all at once by `step`, longer ones `size` places after the other by `chunk`.

    Chunks begin where their row begins, so that a row's numbers do not depend on its neighbours. Of the places of a last chunk
    that are not the row's all values are 0: such a place must leave the state as it is. There are as many chunks as the rows
    need: a step of rows of one place has none.
    """
    count = places[0].shape[0]
    lengths, begins = offsets[1:] - offsets[:-1], offsets[:-1]
    single = lengths == 1
    first, after = jax.vmap(step)(tuple(x[jnp.minimum(begins, count - 1)] for x in places), states)
    out = jnp.zeros((count + size, *first.shape[1:]), first.dtype)
    out = out.at[jnp.where(single, begins, count + size)].set(first, mode="drop")
    states = _chosen(single, after, states)
    if count == 1:
        return out[:1], states
    padded = tuple(jnp.pad(x, ((0, size), *((0, 0),) * (x.ndim - 1))) for x in places)
    ends = jnp.cumsum(jnp.where(single, 0, -(-lengths // size)))

    def advance(number: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out, states = carry
        row = jnp.sum(ends <= number)
        before = number - jnp.where(row == 0, 0, ends[row - 1])
        begin = begins[row] + before * size
        mine = jnp.arange(size) < lengths[row] - before * size
        values = tuple(
            _chosen(mine, x, jnp.zeros_like(x)) for x in (lax.dynamic_slice_in_dim(x, begin, size) for x in padded)
        )
        found, state = chunk(values, states[row])
        found = _chosen(mine, found, lax.dynamic_slice_in_dim(out, begin, size))
        return lax.dynamic_update_slice_in_dim(out, found, begin, axis=0), states.at[row].set(state)

    out, states = lax.fori_loop(0, ends[-1], advance, (out, states))
    return out[:count], states


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
