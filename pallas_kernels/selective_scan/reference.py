"""The definition of the scan: token by token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.recurrent_rows.rows import Advance, Places, Rows, as_float32, place_by_place


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def selective_scan(
    x: jax.Array,
    steps: jax.Array,
    rates: jax.Array,
    inward: jax.Array,
    outward: jax.Array,
    states: jax.Array,
    rows: Rows,
    *,
    precision: jax.lax.Precision,
) -> tuple[jax.Array, jax.Array]:
    """See the op's contract."""
    return place_by_place(one_token(rates), (x, steps, inward, outward), states, rows)


def one_token(rates: jax.Array) -> Advance:
    """The recurrence of one token of one row."""

    def advance(place: Places, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, step, inward, outward = as_float32(*place)
        tiles, _, lanes = state.shape
        inward, outward = (jnp.repeat(shared, tiles // len(shared), axis=0)[..., None] for shared in (inward, outward))
        decays = jnp.repeat(jnp.exp(step * rates), x.shape[1]).reshape(tiles, 1, lanes)
        state = decays * state + (step[:, None] * x).reshape(tiles, 1, lanes) * inward
        return (state * outward).sum(axis=1).reshape(x.shape), state

    return advance
