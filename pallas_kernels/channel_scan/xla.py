"""The scan in plain XLA: of a chunk's tokens all states at once, in as many passes as the chunk's logarithm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.channel_scan.reference import one_token
from pallas_kernels.channel_scan.reference import supports as supports
from pallas_kernels.recurrent_rows.rows import Advance, Places, Rows, as_float32, chunk_by_chunk

CHUNK = 64
"""Tokens."""


def channel_scan(
    x: jax.Array,
    steps: jax.Array,
    rates: jax.Array,
    inward: jax.Array,
    outward: jax.Array,
    states: jax.Array,
    rows: Rows,
) -> tuple[jax.Array, jax.Array]:
    """See the op's contract. Memory: two copies of the rows' states, and a few of a chunk's, `[C, T, S, L]`."""
    places = (x, steps, inward, outward)
    return chunk_by_chunk(one_token(rates), chunk(rates), places, states, rows, size=CHUNK)


def chunk(rates: jax.Array) -> Advance:
    """The recurrence of a chunk `C` of one row."""
    tiles, _, lanes = rates.shape

    def advance(places: Places, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, steps, inward, outward = as_float32(*places)
        x, steps = (channels.reshape(-1, tiles, 1, lanes) for channels in (x, steps))
        inward, outward = (shared[:, None, :, None] for shared in (inward, outward))
        left, taken = lax.associative_scan(_both, (jnp.exp(steps * rates), steps * x * inward))
        states = left * state + taken
        return (states * outward).sum(axis=2).reshape(len(x), -1), states[-1]

    return advance


def _both(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """What is left of a state, and what is added to it, by some tokens and then by some others."""
    (left, taken), (left_then, taken_then) = first, second
    return left * left_then, left_then * taken + taken_then
