"""The definition of the scan: token by token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.recurrence import Advance, Places, as_float32, place_by_place


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
    offsets: jax.Array,
    *,
    precision: jax.lax.Precision,
) -> tuple[jax.Array, jax.Array]:
    """See the op's contract."""
    return place_by_place(one_token(rates), (x, steps, inward, outward), states, offsets)


def one_token(rates: jax.Array) -> Advance:
    """The recurrence of one token of one row."""

    def advance(place: Places, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, step, inward, outward = as_float32(*place)
        each = x.shape[0] // inward.shape[0]
        inward, outward = (jnp.repeat(shared, each, axis=0)[:, None] for shared in (inward, outward))
        state = jnp.exp(step * rates)[:, None, None] * state + (step[:, None] * x)[..., None] * inward
        return (state * outward).sum(axis=-1), state

    return advance
