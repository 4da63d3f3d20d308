"""A layer of a model: what mixes tokens, what works on each alone, and norms around them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

import jax
from flax import nnx

from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.keeps import Keeps
from jaxengine.device.layers.norm import LayerNorm
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
    """Where a layer has norms: before each of its two parts, behind each, both, or behind each sum with the residual stream."""

    PRE = "pre"
    POST = "post"
    SANDWICH = "sandwich"
    POST_SUM = "post_sum"


class Block(nnx.Module):
    """A mixer and a feed-forward (`mlp`), each added to the residual stream, `residual_multiplier` times.

    The mixer's parameters lie under `attention`, or where it is none (`attends`) under `mixer`.
    """

    def __init__(
        self,
        mixer: Mixer,
        mlp: FeedForward,
        *,
        norm: Callable[[], nnx.Module],
        norms: Norms = Norms.PRE,
        residual_multiplier: float = 1.0,
        attends: bool = True,
    ) -> None:
        """`norm` makes one of the block's norms, those of sums are `LayerNorm`; the one before any mixer is `attention_norm`."""
        self.norms = norms
        self.residual_multiplier = residual_multiplier
        self.attention = mixer if attends else None
        self.mixer = None if attends else mixer
        self.mlp = mlp
        if norms is not Norms.POST:
            self.attention_norm, self.mlp_norm = norm(), norm()
        if norms in (Norms.SANDWICH, Norms.POST):
            self.attention_output_norm, self.mlp_output_norm = norm(), norm()

    @property
    def keeps(self) -> Keeps:
        """What the mixer keeps."""
        return self._mixes.keeps

    @property
    def _mixes(self) -> Mixer:
        return _one(self.attention, self.mixer)

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        if self.norms is Norms.POST_SUM:
            mixed, cache = self._mixes(x, cache, step)
            assert isinstance(self.attention_norm, LayerNorm)
            assert isinstance(self.mlp_norm, LayerNorm)
            x = self.attention_norm.of_sum(x, self._scaled(mixed), step)
            return self.mlp_norm.of_sum(x, self._scaled(self.mlp(x, step)), step), cache
        pre, post = self.norms is not Norms.POST, self.norms is not Norms.PRE
        mixed, cache = self._mixes(self.attention_norm(x) if pre else x, cache, step)
        x = x + self._scaled(self.attention_output_norm(mixed) if post else mixed)
        fed = self.mlp(self.mlp_norm(x) if pre else x, step)
        return x + self._scaled(self.mlp_output_norm(fed) if post else fed), cache

    def _scaled(self, y: jax.Array) -> jax.Array:
        return y if self.residual_multiplier == 1.0 else y * self.residual_multiplier


class HalfBlock(nnx.Module):
    """A mixer or a feed-forward (`mlp`) alone, behind a norm, added to the residual stream. Mixers are named as in `Block`."""

    def __init__(
        self,
        *,
        attention: Mixer | None = None,
        mixer: Mixer | None = None,
        mlp: FeedForward | None = None,
        norm: nnx.Module,
    ) -> None:
        """One of the three."""
        assert [attention, mixer, mlp].count(None) == 2
        self.norm = norm
        self.attention, self.mixer, self.mlp = attention, mixer, mlp

    @property
    def keeps(self) -> Keeps:
        """What the mixer keeps, if it is one."""
        return () if self.mlp is not None else _one(self.attention, self.mixer).keeps

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        seen = self.norm(x)
        if self.mlp is not None:
            return x + self.mlp(seen, step), cache
        mixed, cache = _one(self.attention, self.mixer)(seen, cache, step)
        return x + mixed, cache


def _one(attention: Mixer | None, mixer: Mixer | None) -> Mixer:
    found = mixer if attention is None else attention
    assert found is not None
    return found


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
