"""A layer of a model: what mixes tokens, what works on each alone, and norms around them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

import jax
from flax import nnx

from jaxengine.layers.step import Step


class Mixer(Protocol):
    """Lets tokens see others of their sequence. A Flax NNX module."""

    def __call__(self, x: jax.Array, cache: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
        """`x [N, E]` and the cache of all layers -> `[N, E]` and the cache."""
        ...


class FeedForward(Protocol):
    """Works on each token alone. A Flax NNX module."""

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        """`x [N, E]` -> `[N, E]`."""
        ...


class Norms(Enum):
    """Where a layer has norms: before each of its two parts, also behind them, or behind each sum with the residual stream."""

    BEFORE = "before"
    AROUND = "around"
    AFTER = "after"


class Block(nnx.Module):
    """A mixer (`attention`) and a feed-forward (`mlp`), each added to the residual stream."""

    def __init__(
        self, attention: Mixer, mlp: FeedForward, *, norm: Callable[[], nnx.Module], norms: Norms = Norms.BEFORE
    ) -> None:
        """`norm` makes one of the block's norms."""
        self.norms = norms
        self.attention_norm, self.attention, self.mlp_norm, self.mlp = norm(), attention, norm(), mlp
        if norms is Norms.AROUND:
            self.attention_output_norm, self.mlp_output_norm = norm(), norm()

    def __call__(self, x: jax.Array, cache: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
        if self.norms is Norms.AFTER:
            mixed, cache = self.attention(x, cache, step)
            x = self.attention_norm(x + mixed)
            return self.mlp_norm(x + self.mlp(x, step)), cache
        mixed, cache = self.attention(self.attention_norm(x), cache, step)
        x = x + (self.attention_output_norm(mixed) if self.norms is Norms.AROUND else mixed)
        fed = self.mlp(self.mlp_norm(x), step)
        return x + (self.mlp_output_norm(fed) if self.norms is Norms.AROUND else fed), cache
