"""Embeddings of several levels: the first one enters, and each further one is added behind an early layer (arXiv 2406.04334)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxengine.device.layers.block import Block
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.step import Shared, Step
from jaxengine.device.models.shared.rotary_decoder import RotaryDecoder
from jaxengine.device.models.shared.seeing import Seeing, Seen
from pallas_kernels import AdapterRows


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LevelShared(Shared):
    """`levels [L, N, E]` are what is added behind each of the first layers, zeros where a place shows nothing."""

    levels: jax.Array | None = None


class LevelBlock(Block):
    """A layer behind which the level of its number is added."""

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        x, cache = super().__call__(x, cache, step)
        assert isinstance(step.shared, LevelShared)
        assert step.shared.levels is not None
        return x + jax.lax.dynamic_index_in_dim(step.shared.levels, step.layer, keepdims=False), cache


class SeeingLevels(Seeing, RotaryDecoder):
    """A `Seeing` of whose embeddings there are as many levels as its tower is tapped."""

    def block_class(self, layer: int) -> type[Block]:
        tower = self.config.tower
        return LevelBlock if tower is not None and layer < len(tower.taps) else super().block_class(layer)

    def embed_prompt(
        self, tokens: jax.Array, positions: jax.Array, seen: Seen, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        x, shared = super().embed_prompt(tokens, positions, seen, adapters)
        places, width = x.shape
        behind = jnp.where(seen.here[:, None], seen.rows[:, width:].astype(x.dtype), jnp.zeros((), x.dtype))
        return x, LevelShared(shared.angles, behind.reshape(places, -1, width).swapaxes(0, 1))
