"""The definition of attention within rows: all scores of all places, masked, softmax in float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.row_attention.relative import Relative


def supports(*args: Any, **options: Any) -> str | None:
    """None: it can do every case."""
    return None


def row_attention(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    offsets: jax.Array,
    *,
    scale: float,
    window: int | None,
    relative: Relative | None,
) -> jax.Array:
    """See the op's contract. Memory: a score of each place for each other, in float32."""
    places, heads, head_size = q.shape
    place = jnp.arange(places)
    row = jnp.searchsorted(offsets[1:], place, side="right")
    real = place < offsets[-1]
    seen = (row[:, None] == row[None]) & real[:, None] & real[None]
    if window is not None:
        seen &= jnp.abs(place[:, None] - place[None]) <= window
    kept = real[:, None, None]  # a NaN in what is not seen times 0 is a NaN
    keys, values = (jnp.where(kept, of, 0).astype(jnp.float32) for of in (keys, values))
    grouped = jnp.where(kept, q, 0).astype(jnp.float32).reshape(places, keys.shape[1], -1, head_size)
    scores = scale * jnp.einsum("nkgh,mkh->kgnm", grouped, keys, precision="highest")
    if relative is not None:
        scores += scale * relative.added(place[None], place[None]).transpose(1, 0, 2, 3)
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True, where=seen, initial=-1e30))
    weights = jnp.where(seen, weights, 0.0)
    weights /= jnp.maximum(weights.sum(axis=-1, keepdims=True), 1e-30)
    mixed = jnp.einsum("kgnm,mkh->nkgh", weights, values, precision="highest")
    return mixed.reshape(places, heads, head_size).astype(q.dtype)
