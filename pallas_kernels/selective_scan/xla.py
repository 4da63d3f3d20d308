"""The scan in plain XLA: a chunk's tokens see one another as in attention, and what was before them in the state."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from pallas_kernels.recurrent_rows.rows import Advance, Places, Rows, as_float32, causal_decays, chunk_by_chunk
from pallas_kernels.selective_scan.reference import one_token
from pallas_kernels.selective_scan.reference import supports as supports

CHUNK = 128
"""Tokens. A chunk of them is as wide as a TPU's matrix unit."""


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
    """See the op's contract. Memory: two copies of the rows' states, and `[heads, C, C]` of a chunk in float32."""
    places = (x, steps, inward, outward)
    return chunk_by_chunk(one_token(rates), chunk(rates, precision), places, states, rows, size=CHUNK)


def chunk(rates: jax.Array, precision: jax.lax.Precision) -> Advance:
    """The recurrence of a chunk `C` of one row; heads are `G` groups of `R`, and channels `G` groups of `T` tiles."""
    product = partial(jnp.einsum, precision=precision, preferred_element_type=jnp.float32)

    def advance(places: Places, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, steps, inward, outward = as_float32(*places)
        size, groups = inward.shape[:2]
        tiles, _, lanes = state.shape
        sums, decays = causal_decays(steps * rates)
        written = x * steps[..., None]
        before = state.reshape(groups, -1, *state.shape[1:])

        seen = product("igs,jgs->gij", outward, inward)[:, None] * decays.reshape(groups, -1, size, size)
        y = product("grij,jgrh->igrh", seen, written.reshape(size, groups, -1, x.shape[-1])).reshape(x.shape)
        y += jnp.exp(sums)[..., None] * product("igs,gtsl->igtl", outward, before).reshape(x.shape)
        left = (written * jnp.exp(sums[-1] - sums)[..., None]).reshape(size, groups, -1, lanes)
        decayed = jnp.repeat(jnp.exp(sums[-1]), x.shape[-1]).reshape(tiles, 1, lanes) * state
        return y, decayed + product("jgs,jgtl->gtsl", inward, left).reshape(state.shape)

    return advance
