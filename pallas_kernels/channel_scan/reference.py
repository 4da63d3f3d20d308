"""The definition of the scan: token by token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.recurrent_rows.rows import Advance, Places, Rows, as_float32, place_by_place


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def channel_scan(
    x: jax.Array,
    steps: jax.Array,
    rates: jax.Array,
    inward: jax.Array,
    outward: jax.Array,
    states: jax.Array,
    rows: Rows,
) -> tuple[jax.Array, jax.Array]:
    """See the op's contract."""
    return place_by_place(one_token(rates), (x, steps, inward, outward), states, rows)


def one_token(rates: jax.Array) -> Advance:
    """The recurrence of one token of one row."""
    tiles, _, lanes = rates.shape

    def advance(place: Places, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, step, inward, outward = as_float32(*place)
        x, step = (channels.reshape(tiles, 1, lanes) for channels in (x, step))
        state = jnp.exp(step * rates) * state + step * x * inward[:, None]
        return (state * outward[:, None]).sum(axis=1).reshape(-1), state

    return advance
