"""The generalised delta rule in plain XLA: what goes from a state at each token of a chunk is solved for at once.

What goes at a token depends on what went and came at those before it: linearly, by a matrix with ones on its diagonal and zeros
above. What is left between two tokens is the product of a factor of each, which bounded decays keep within float32.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.gated_delta.xla import unit_triangle_inverse
from pallas_kernels.generalised_delta.reference import one_token
from pallas_kernels.generalised_delta.reference import supports as supports
from pallas_kernels.recurrent_rows.rows import Advance, Places, Rows, as_float32, chunk_by_chunk

CHUNK = 32
"""Tokens, a power of two. A factor of a token is at most `exp(CHUNK)`."""


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
    """See the op's contract. Memory: two copies of the rows' states, and a few `[heads, C, C]` of a chunk in float32."""
    places = (q, k, v, decays, removed, rates)
    return chunk_by_chunk(one_token, chunk(precision), places, states, rows, size=CHUNK)


def chunk(precision: jax.lax.Precision) -> Advance:
    """The recurrence of a chunk `C` of one row."""
    product = partial(jnp.einsum, precision=precision, preferred_element_type=jnp.float32)
    exact = partial(jnp.einsum, precision=lax.Precision.HIGHEST)

    def advance(places: Places, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        q, k, v, logs, removed, rates = as_float32(*places)
        tiles, size, _ = state.shape
        heads, values = v.shape[1:]
        before = state.reshape(tiles, size, -1, values).swapaxes(1, 2).reshape(heads, size, values)
        sums = jnp.cumsum(logs, axis=0)
        asked, looked_up = q * jnp.exp(sums), removed * jnp.exp(sums - logs)
        # Of what comes in at a token: values by their keys, and by the other keys, as much as goes with the sign turned.
        written = jnp.stack([k, rates * removed]) * jnp.exp(-sums)
        up_to = jnp.tri(len(q), dtype=bool)

        comes, goes = jnp.where(jnp.tri(len(q), k=-1, dtype=bool), exact("ihk,wjhk->whij", looked_up, written), 0.0)
        known = exact("ihk,hkv->ihv", looked_up, before) + exact("hij,jhv->ihv", comes, v)
        gone = exact("hij,jhv->ihv", unit_triangle_inverse(goes), known)

        taken = jnp.stack([v, -gone])
        seen = jnp.where(up_to, product("ihk,wjhk->whij", asked, written), 0.0)
        out = product("ihk,hkv->ihv", asked, before) + product("whij,wjhv->ihv", seen, taken)
        left = jnp.exp(sums[-1])
        after = left[..., None] * before + product("wjhk,wjhv->hkv", written * left, taken)
        return out, after.reshape(tiles, -1, size, values).swapaxes(1, 2).reshape(state.shape)

    return advance
