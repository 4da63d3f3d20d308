"""What all families share: the forward pass in three parts, the head, and what is kept of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from jaxengine.layers.context import ModelContext
from jaxengine.layers.embedding import Embedding
from jaxengine.layers.stack import run_layers
from jaxengine.layers.step import Angles, Step
from jaxengine.models.interface import Paged


class Decoder(nnx.Module):
    """A `CausalLM` in three parts. A runtime may call the parts from programs of their own (`runtime/forward.py`)."""

    layers: Sequence[nnx.Module]

    def __init__(self, config: Any, context: ModelContext, *, width: int | None = None) -> None:
        """`config` is a `DecoderConfig`; `width` that of the embeddings, where it is not the hidden size."""
        width = width or config.hidden_size
        self.config = config
        self.context = context
        self.embed = Embedding(config.vocab_size, width, context=context)
        self.head = None if config.tie_word_embeddings else Embedding(config.vocab_size, width, context=context)

    @property
    def cache(self) -> tuple[Paged, ...]:
        """Layers that see equally far share a declaration."""
        config = self.config
        kinds: dict[int | None, list[int]] = {}
        for layer, window in enumerate(config.windows or (None,) * config.num_layers):
            kinds.setdefault(window, []).append(layer)
        kv_heads = self.context.stored_kv_heads(config.num_kv_heads)
        return tuple(Paged(tuple(layers), kv_heads, config.head_dim, keep=window) for window, layers in kinds.items())

    def enter(self, tokens: jax.Array, positions: jax.Array) -> tuple[jax.Array, tuple[Angles, ...]]:
        """`tokens [N]`, `positions [N]` -> the residual stream `[N, E]`, and the angles of the step."""
        raise NotImplementedError

    def leave(self, x: jax.Array) -> jax.Array:
        """The residual stream `[N, E]` after the last layer -> hidden `[N, E]` for `logits`. Each row stands for itself."""
        raise NotImplementedError

    def __call__(self, tokens: jax.Array, cache: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
        x, angles = self.enter(tokens, step.positions)
        x, cache = run_layers(self.layers, x, cache, step.turning(angles))
        return self.leave(x), cache

    def logits(self, hidden: jax.Array) -> jax.Array:
        """`hidden [R, E]` -> float32 logits `[R, V]`."""
        return (self.embed if self.head is None else self.head).logits(hidden)
