"""The forward pass that all families share: into the residual stream, layer by layer, and out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from jaxengine.layers.attention import AttentionInputs
from jaxengine.layers.stack import run_layers


class Decoder(nnx.Module):
    """A `CausalLM` in three parts. A runtime may call the parts from programs of their own (`runtime/forward.py`)."""

    layers: Sequence[nnx.Module]

    def enter(self, tokens: jax.Array, positions: jax.Array) -> tuple[jax.Array, tuple[Any, ...]]:
        """`tokens [N]`, `positions [N]` -> the residual stream `[N, E]`, and what every layer takes beside it."""
        raise NotImplementedError

    def leave(self, x: jax.Array) -> jax.Array:
        """The residual stream `[N, E]` after the last layer -> hidden `[N, E]` for `logits`. Each row stands for itself."""
        raise NotImplementedError

    def __call__(
        self, tokens: jax.Array, positions: jax.Array, kv_pages: jax.Array, attention: AttentionInputs
    ) -> tuple[jax.Array, jax.Array]:
        x, shared = self.enter(tokens, positions)
        x, kv_pages = run_layers(self.layers, x, kv_pages, attention, *shared)
        return self.leave(x), kv_pages
