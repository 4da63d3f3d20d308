"""The gated delta rule in plain XLA: what a chunk's tokens learn depends on one another, and is solved for at once.

What a token learns is its value less what the state and the tokens before it in the chunk have for its key. As a matrix over the
chunk that is one with ones on its diagonal and zeros above, whose inverse is made of those of its halves.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.gated_delta.reference import one_token
from pallas_kernels.gated_delta.reference import supports as supports
from pallas_kernels.recurrent_rows.rows import Advance, Places, Rows, as_float32, causal_decays, chunk_by_chunk

CHUNK = 64
"""Tokens, a power of two. Solving for what they learn grows with its square for each of them."""
CHUNK_BY_CHANNEL = 16
"""Where decays are by channel: of each pair of tokens as many numbers are made as a head has channels."""


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
    """See the op's contract. Memory: two copies of the rows' states, and a few `[heads, C, C]` of a chunk in float32.

    Where decays are by channel those are `[heads, C, C, H]` of shorter chunks.
    """
    places = (q, k, v, decays, rates)
    chunk, size = chunks(decays, precision)
    return chunk_by_chunk(one_token, chunk, places, states, rows, size=size)


def chunks(decays: jax.Array, precision: jax.lax.Precision) -> tuple[Advance, int]:
    """The recurrence of a chunk, and how many tokens that is."""
    if decays.ndim == 2:
        return _chunk(precision), CHUNK
    return _chunk_by_channel(precision), CHUNK_BY_CHANNEL


def _chunk(precision: jax.lax.Precision) -> Advance:
    """The recurrence of a chunk `C` of one row; heads are `K` of keys, each shared by `R`."""
    product = partial(jnp.einsum, precision=precision, preferred_element_type=jnp.float32)
    exact = partial(jnp.einsum, precision=lax.Precision.HIGHEST)

    def advance(places: Places, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        q, k, v, logs, rates = as_float32(*places)
        size, shared = k.shape[:2]
        sums, decays = causal_decays(logs)
        v, rates, sums = (x.reshape(size, shared, -1, *x.shape[2:]) for x in (v, rates, sums))
        decays = decays.reshape(shared, -1, size, size)
        before = state.reshape(shared, -1, *state.shape[1:])

        alike = exact("ikh,jkh->kij", k, k)[:, None] * decays * rates.transpose(1, 2, 0)[..., None]
        known = jnp.exp(sums)[..., None] * exact("ikh,krhv->ikrv", k, before)
        learnt = exact("krij,jkrv->ikrv", unit_triangle_inverse(alike), rates[..., None] * (v - known))
        out = jnp.exp(sums)[..., None] * product("ikh,krhv->ikrv", q, before)
        out += product("krij,jkrv->ikrv", product("ikh,jkh->kij", q, k)[:, None] * decays, learnt)
        left = jnp.exp(sums[-1] - sums)[..., None]
        after = jnp.exp(sums[-1])[..., None, None] * before + product("jkh,jkrv->krhv", k, learnt * left)
        return out.reshape(size, -1, v.shape[-1]), after.reshape(state.shape)

    return advance


def _chunk_by_channel(precision: jax.lax.Precision) -> Advance:
    """As `_chunk`. What is left between two tokens stands within the sum over channels.

    Drawn apart, into a factor for each of the two, it would leave float32 where a chunk forgets much.
    """
    product = partial(jnp.einsum, precision=precision, preferred_element_type=jnp.float32)
    exact = partial(jnp.einsum, precision=lax.Precision.HIGHEST)

    def advance(places: Places, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        q, k, v, logs, rates = as_float32(*places)
        size, heads = logs.shape[:2]
        q, k = (jnp.repeat(shared, heads // k.shape[1], axis=1) for shared in (q, k))
        sums, decays = causal_decays(logs.reshape(size, -1))
        sums = sums.reshape(logs.shape)
        written = decays.reshape(heads, -1, size, size) * k.transpose(1, 2, 0)[:, :, None]

        alike = (written * k.transpose(1, 2, 0)[..., None]).sum(axis=1) * rates.T[..., None]
        asked = (written * q.transpose(1, 2, 0)[..., None]).sum(axis=1)
        known = exact("ihk,hkv->ihv", k * jnp.exp(sums), state)
        learnt = exact("hij,jhv->ihv", unit_triangle_inverse(alike), rates[..., None] * (v - known))
        out = product("ihk,hkv->ihv", q * jnp.exp(sums), state) + product("hij,jhv->ihv", asked, learnt)
        left = k * jnp.exp(sums[-1] - sums)
        after = jnp.exp(sums[-1])[..., None] * state + product("jhk,jhv->hkv", left, learnt)
        return out, after

    return advance


def unit_triangle_inverse(matrix: jax.Array) -> jax.Array:
    """The inverse of `[..., C, C]` with ones on its diagonal and zeros above it, whatever is there; `C` is a power of two.

    LAPACK's would be a call that a kept program cannot make before something else has loaded the library.
    """
    size = matrix.shape[-1]
    if size == 1:
        return jnp.ones_like(matrix)
    half = size // 2
    halves = jnp.stack([matrix[..., :half, :half], matrix[..., half:, half:]])
    first, second = unit_triangle_inverse(halves)
    product = partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    corner = -product(product(second, matrix[..., half:, :half]), first)
    return jnp.concatenate(
        [
            jnp.concatenate([first, jnp.zeros_like(first)], axis=-1),
            jnp.concatenate([corner, second], axis=-1),
        ],
        axis=-2,
    )
