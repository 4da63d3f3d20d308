"""A layer of a model: what mixes tokens, what works on each alone, and norms around them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

import jax
from flax import nnx

from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.keeps import Keeps
from jaxengine.device.layers.step import Step


class Mixer(Protocol):
    """Lets tokens see others of their sequence. A Flax NNX module, which declares what it `keeps` of a sequence."""

    @property
    def keeps(self) -> Keeps: ...

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """`x [N, E]` and the cache of all layers -> `[N, E]` and the cache."""
        ...


class FeedForward(Protocol):
    """Works on each token alone. A Flax NNX module."""

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        """`x [N, E]` -> `[N, E]`."""
        ...


class Norms(Enum):
    """Where a layer has norms: before each of its two parts, behind them, both, or behind each sum with the residual stream."""

    BEFORE = "before"
    BEHIND = "behind"
    AROUND = "around"
    AFTER = "after"


class Block(nnx.Module):
    """A mixer (`attention`) and a feed-forward (`mlp`), each added to the residual stream, `share` times."""

    def __init__(
        self,
        attention: Mixer,
        mlp: FeedForward,
        *,
        norm: Callable[[], nnx.Module],
        norms: Norms = Norms.BEFORE,
        share: float = 1.0,
    ) -> None:
        """`norm` makes one of the block's norms."""
        self.norms = norms
        self.share = share
        self.attention, self.mlp = attention, mlp
        if norms is not Norms.BEHIND:
            self.attention_norm, self.mlp_norm = norm(), norm()
        if norms in (Norms.AROUND, Norms.BEHIND):
            self.attention_output_norm, self.mlp_output_norm = norm(), norm()

    @property
    def keeps(self) -> Keeps:
        """What the mixer keeps."""
        return self.attention.keeps

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        if self.norms is Norms.AFTER:
            mixed, cache = self.attention(x, cache, step)
            x = self.attention_norm(x + self._shared(mixed))
            return self.mlp_norm(x + self._shared(self.mlp(x, step))), cache
        before, behind = self.norms is not Norms.BEHIND, self.norms is not Norms.BEFORE
        mixed, cache = self.attention(self.attention_norm(x) if before else x, cache, step)
        x = x + self._shared(self.attention_output_norm(mixed) if behind else mixed)
        fed = self.mlp(self.mlp_norm(x) if before else x, step)
        return x + self._shared(self.mlp_output_norm(fed) if behind else fed), cache

    def _shared(self, y: jax.Array) -> jax.Array:
        return y if self.share == 1.0 else y * self.share


class HalfBlock(nnx.Module):
    """A mixer (`attention`) or a feed-forward (`mlp`) alone, behind a norm, added to the residual stream."""

    def __init__(self, *, attention: Mixer | None = None, mlp: FeedForward | None = None, norm: nnx.Module) -> None:
        """One of the two."""
        assert (attention is None) != (mlp is None)
        self.norm = norm
        self.attention, self.mlp = attention, mlp

    @property
    def keeps(self) -> Keeps:
        """What the mixer keeps, if it is one."""
        return () if self.attention is None else self.attention.keeps

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        seen = self.norm(x)
        if self.attention is not None:
            mixed, cache = self.attention(seen, cache, step)
            return x + mixed, cache
        assert self.mlp is not None
        return x + self.mlp(seen, step), cache


class ParallelBlock(nnx.Module):
    """A mixer and a feed-forward that see the same residual stream, behind a norm of both or one of each."""

    def __init__(self, attention: Mixer, mlp: FeedForward, *, norm: Callable[[], nnx.Module], one_norm: bool) -> None:
        """`norm` makes one of the block's norms."""
        self.attention, self.mlp = attention, mlp
        self.attention_norm = norm()
        self.mlp_norm = None if one_norm else norm()

    @property
    def keeps(self) -> Keeps:
        """What the mixer keeps."""
        return self.attention.keeps

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        seen = self.attention_norm(x)
        mixed, cache = self.attention(seen, cache, step)
        fed = self.mlp(seen if self.mlp_norm is None else self.mlp_norm(x), step)
        return x + mixed + fed, cache
