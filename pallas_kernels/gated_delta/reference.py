"""The definition of the gated delta rule: token by token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.recurrent_rows.rows import Places, Rows, as_float32, place_by_place


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def gated_delta(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decays: jax.Array,
    rates: jax.Array,
    states: jax.Array,
    rows: Rows,
    *,
    precision: jax.lax.Precision,
) -> tuple[jax.Array, jax.Array]:
    """See the op's contract."""
    return place_by_place(one_token, (q, k, v, decays, rates), states, rows)


def one_token(place: Places, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The recurrence of one token of one row."""
    q, k, v, decay, rate = as_float32(*place)
    q, k = (jnp.repeat(shared, len(v) // len(k), axis=0)[..., None] for shared in (q, k))
    state = jnp.exp(decay).reshape(len(v), -1, 1) * state
    learnt = rate[:, None] * (v - (state * k).sum(axis=1))
    state += k * learnt[:, None]
    return (state * q).sum(axis=1), state
