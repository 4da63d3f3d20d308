"""The definition of the generalised delta rule: token by token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.recurrent_rows.rows import Places, Rows, as_float32, place_by_place


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def generalised_delta(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decays: jax.Array,
    removed: jax.Array,
    rates: jax.Array,
    states: jax.Array,
    rows: Rows,
    *,
    precision: jax.lax.Precision,
) -> tuple[jax.Array, jax.Array]:
    """See the op's contract."""
    return place_by_place(one_token, (q, k, v, decays, removed, rates), states, rows)


def one_token(place: Places, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The recurrence of one token of one row."""
    heads, values = place[2].shape
    tiles, size, _ = state.shape
    q, k, v, decay, removed, rate = (x.reshape(tiles, heads // tiles, -1) for x in as_float32(*place))
    q, k, decay, removed, rate = (x.swapaxes(1, 2)[..., None] for x in (q, k, decay, removed, rate))
    side_by_side = state.reshape(tiles, size, -1, values)
    gone = (side_by_side * removed).sum(axis=1, keepdims=True)
    after = jnp.exp(decay) * side_by_side - rate * removed * gone + k * v[:, None]
    return (after * q).sum(axis=1).reshape(heads, values), after.reshape(state.shape)
