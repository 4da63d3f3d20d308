"""The scan on a CPU: one token after the other, and one row after the other, so that neither cuts nor company change a bit."""

from __future__ import annotations

import jax
from jax import lax

from pallas_kernels.channel_scan.reference import one_token
from pallas_kernels.channel_scan.reference import supports as supports
from pallas_kernels.recurrent_rows.rows import Advance, Places, Rows, row_by_row

CHUNK = 32
"""Tokens. No result depends on it."""


def channel_scan(
    x: jax.Array,
    steps: jax.Array,
    rates: jax.Array,
    inward: jax.Array,
    outward: jax.Array,
    states: jax.Array,
    rows: Rows,
) -> tuple[jax.Array, jax.Array]:
    """See the op's contract. Memory: a row's state."""
    step = one_token(rates)
    return row_by_row(step, token_by_token(step), (x, steps, inward, outward), states, rows, size=CHUNK)


def token_by_token(step: Advance) -> Advance:
    """The recurrence of a chunk of one row, by that of a token."""

    def advance(places: Places, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(state: jax.Array, place: Places) -> tuple[jax.Array, jax.Array]:
            out, state = step(place, state)
            return state, out

        state, out = lax.scan(one, state, places)
        return out, state

    return advance
