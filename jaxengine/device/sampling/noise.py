"""Gumbel noise that is a pure function of (seed, position, token id)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Array = jax.Array


def gumbel(seeds: Array, positions: Array, ids: Array) -> Array:
    """Standard Gumbel noise `f32[R, W]` for `seeds u32[R, 2]`, `positions i32[R]` and token ids `i32[1, W]`.

    Adding it to logits and taking the largest draws from their softmax. Nothing but the three arguments enters, so a row's
    token does not depend on its slot, the bucket or its neighbours.
    """
    return -jnp.log(_exponential(_bits(_row_keys(seeds, positions), ids)))


def uniform(seeds: Array, positions: Array) -> Array:
    """One number `f32[R]` in [0, 1) for each row, by the noise of a token id that no vocabulary has."""
    bits = _bits(_row_keys(seeds, positions), jnp.full((1, 1), -1))[:, 0]
    return (bits >> 8).astype(jnp.int32).astype(jnp.float32) * 2.0**-24


def _row_keys(seeds: Array, positions: Array) -> Array:
    """The key words of `fold_in(key(seed), position)`, `u32[R, 2]`."""

    def fold(seed: Array, position: Array) -> Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return jax.random.key_data(jax.random.fold_in(key, position))

    return jax.vmap(fold)(seeds, positions)


def _bits(keys: Array, ids: Array) -> Array:
    """32 random bits for each row key and token id.

    Threefry makes the row keys only, and a keyed integer hash spreads them over the vocabulary: threefry per token costs many
    times as much on CPU (`benchmarks/sampler.py`).
    """
    return _mix(_mix(ids.astype(jnp.uint32) ^ keys[:, :1]) + keys[:, 1:])


def _mix(word: Array) -> Array:
    """A bijection of 32-bit words in which every input bit flips every output bit half of the time."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x21F0AAAD)
    word = (word ^ (word >> 15)) * jnp.uint32(0x735A2D97)
    return word ^ (word >> 15)


def _exponential(bits: Array) -> Array:
    """Exponential variates: `-log(1 - u)` for uniform `u`, exact to float32 where they are small.

    The smallest variate of a row decides its token, and among 150,000 tokens that is near 1e-5: there `log(1 - u)` has
    few bits left and the series is exact.
    """
    # 31 bits, as signed integers: unsigned ones convert to float by a slow path on CPU.
    uniform = ((bits >> 1).astype(jnp.int32).astype(jnp.float32) + 0.5) * 2.0**-31
    uniform = jnp.minimum(uniform, 1 - 2.0**-24)
    return jnp.where(uniform < 1e-3, uniform * (1 + 0.5 * uniform), -jnp.log(1 - uniform))
