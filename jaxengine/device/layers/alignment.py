"""When the tokens of a text are said: what some heads of cross attention attend to (arXiv 2212.04356, and OpenAI's code)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """The `heads` that follow the sound, as (layer, head); a median of `width` places smooths what they attend to."""

    heads: tuple[tuple[int, int], ...]
    width: int

    def of_layer(self, layer: int) -> tuple[int, ...]:
        """The heads of one layer."""
        return tuple(head for number, head in self.heads if number == layer)

    @property
    def layers(self) -> tuple[int, ...]:
        """Those that have such heads."""
        return tuple(sorted({layer for layer, _ in self.heads}))

    @property
    def most_heads(self) -> int:
        """Of one layer."""
        return max(len(self.of_layer(layer)) for layer in self.layers)


def attend_whole(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    causal: bool,
    scale: float,
    precision: jax.lax.Precision,
) -> tuple[jax.Array, jax.Array]:
    """Attention of one text that is there whole, written out because its weights are asked for.

    `queries [M, heads, H]`, `keys` and `values [S, heads, H]` -> `[M, heads, H]`, and how much each head attends to each place,
    float32 `[heads, M, S]`. If it is `causal` a token sees itself and those before it.
    """
    scores = scale * jnp.einsum("mhd,shd->hms", queries, keys, precision=precision, preferred_element_type=jnp.float32)
    if causal:
        scores = jnp.where(jnp.tri(len(queries), len(keys), dtype=jnp.bool_), scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1)
    mixed = jnp.einsum("hms,shd->mhd", weights, values.astype(jnp.float32), precision=precision)
    return mixed.astype(queries.dtype), weights


def aligned(weights: jax.Array, first: jax.Array, end: jax.Array, frames: jax.Array, *, width: int) -> jax.Array:
    """What heads attend to, `weights [A, M, S]`, as one picture `[M, S]` of the tokens from `first` to `end` (both int32) and the
    first `frames` places: of each head and place in standard deviations from its mean over the tokens, smoothed by a median of
    `width` places, and averaged over the heads. Other tokens and places mean nothing.
    """
    token = jnp.arange(weights.shape[1], dtype=jnp.int32)
    real = ((token >= first) & (token < end))[:, None]
    count = jnp.maximum(end - first, 1).astype(jnp.float32)
    mean = jnp.where(real, weights, 0.0).sum(axis=1, keepdims=True) / count
    off = jnp.where(real, weights - mean, 0.0)
    deviation = jnp.sqrt((off * off).sum(axis=1, keepdims=True) / count)
    normed = off / jnp.where(deviation > 0, deviation, 1.0)
    return jnp.where(frames > width // 2, median(normed, frames, width=width), normed).mean(axis=0)


def median(x: jax.Array, length: jax.Array, *, width: int) -> jax.Array:
    """Of `x [..., S]`, of whose last axis `length` are meant, the median of each and its neighbours, `width` in all and odd; at
    the ends they are mirrored."""
    size, pad = x.shape[-1], width // 2
    at = jnp.abs(jnp.arange(-pad, size + pad, dtype=jnp.int32))
    at = jnp.clip(jnp.where(at >= length, 2 * (length - 1) - at, at), 0, size - 1)
    around = jnp.take(x, at, axis=-1, mode="clip")
    columns = [jax.lax.slice_in_dim(around, shift, shift + size, axis=-1) for shift in range(width)]
    return _sorted(columns)[pad]


def _sorted(columns: Sequence[jax.Array]) -> list[jax.Array]:
    """By neighbours that change places, odd and even ones in turn: a network of minima and maxima, which is one loop on any
    device, where sorting would make an array with all of them."""
    found = list(columns)
    for turn in range(len(found)):
        for at in range(turn % 2, len(found) - 1, 2):
            low, high = found[at], found[at + 1]
            found[at], found[at + 1] = jnp.minimum(low, high), jnp.maximum(low, high)
    return found
