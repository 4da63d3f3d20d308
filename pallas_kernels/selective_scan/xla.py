"""The scan in plain XLA: a chunk's tokens see one another as in attention, and what was before them in the state."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from pallas_kernels.recurrence import Advance, Places, as_float32, causal_decays, chunk_by_chunk
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
    offsets: jax.Array,
    *,
    precision: jax.lax.Precision,
) -> tuple[jax.Array, jax.Array]:
    """See the op's contract. Memory: a second copy of the states, and `[heads, C, C]` of a chunk in float32."""
    places = (x, steps, inward, outward)
    return chunk_by_chunk(one_token(rates), _chunk(rates, precision), places, states, offsets, size=CHUNK)


def _chunk(rates: jax.Array, precision: jax.lax.Precision) -> Advance:
    """The recurrence of a chunk `C` of one row; heads are `G` groups of `R`."""
    product = partial(jnp.einsum, precision=precision, preferred_element_type=jnp.float32)

    def advance(places: Places, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, steps, inward, outward = as_float32(*places)
        size, groups = inward.shape[:2]
        sums, decays = causal_decays(steps * rates)
        written = (x * steps[..., None]).reshape(size, groups, -1, x.shape[-1])
        before = state.reshape(groups, -1, *state.shape[1:])
        by_group = sums.reshape(size, groups, -1)

        seen = product("igs,jgs->gij", outward, inward)[:, None] * decays.reshape(groups, -1, size, size)
        y = product("grij,jgrh->igrh", seen, written)
        y += jnp.exp(by_group)[..., None] * product("igs,grhs->igrh", outward, before)
        left = jnp.exp(by_group[-1] - by_group)[..., None]
        after = jnp.exp(by_group[-1])[..., None, None] * before + product("jgs,jgrh->grhs", inward, written * left)
        return y.reshape(x.shape), after.reshape(state.shape)

    return advance
