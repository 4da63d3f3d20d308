"""What all families share: the forward pass in three parts, and the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import jax
from flax import nnx

from jaxengine.contract.pooling import Pooling
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.embedding import Embedding
from jaxengine.device.layers.keeps import Keeps
from jaxengine.device.layers.pooler import Pooler, ProjectionShape
from jaxengine.device.layers.stack import Layer
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.interface import LOGITS, POOLED, Head, MediaTraits, Model, Purpose, TokenHeads
from jaxengine.device.weights.rules import Ignore, Rule
from pallas_kernels import AdapterRows


class Decoder(nnx.Module):
    """A `Model` as most are: tokens enter, go through layers and leave."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]]
    IGNORED: ClassVar[Mapping[str, Ignored]]
    POOLING: ClassVar[Pooling] = Pooling.LAST
    layers: Sequence[Layer]

    def __init__(self, config: DecoderConfig, context: ModelContext, *, width: int | None = None) -> None:
        """`width` is that of the embeddings, where it is not the hidden size."""
        width = width or config.hidden_size
        self.config = config
        self.context = context
        self.embed = Embedding(config.vocab_size, width, context=context)
        self.head = (
            None
            if config.tie_word_embeddings or config.pooler is not None
            else Embedding(config.vocab_size, width, bias=config.head_bias, context=context)
        )

        self.pooler = None if config.pooler is None else Pooler(config.pooler, context=context)

    @classmethod
    def read_config(cls, reader: ConfigReader) -> DecoderConfig:
        """As the interface says."""
        raise NotImplementedError

    @classmethod
    def classifier(
        cls, config: DecoderConfig, purpose: Purpose, num_labels: int
    ) -> tuple[tuple[ProjectionShape, ...], int]:
        """Transformers' `score`, or the two matrices of Qwen's reward models."""
        width = config.hidden_size
        if purpose in (Purpose.REWARD, Purpose.PROCESS_REWARD):
            inner = ProjectionShape(inputs=width, outputs=width, source="score.0", bias=True, activation="relu")
            return (inner, ProjectionShape(inputs=width, outputs=num_labels, source="score.2", bias=True)), 2
        bias = purpose is Purpose.CLASSIFY_TOKENS
        return (ProjectionShape(inputs=width, outputs=num_labels, source="score", bias=bias),), 1

    @classmethod
    def token_heads(cls, config: DecoderConfig) -> TokenHeads:
        """None."""
        return TokenHeads()

    @property
    def cache(self) -> tuple[Keeps, ...]:
        """As the interface says."""
        return tuple(layer.keeps for layer in self.layers)

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        """As the interface says."""
        raise NotImplementedError

    @property
    def media(self) -> MediaTraits | None:
        """None: it reads texts."""
        return None

    def final_norm(self, x: jax.Array) -> jax.Array:
        """As the interface says."""
        raise NotImplementedError

    @property
    def heads(self) -> Mapping[str, Head]:
        """Logits, unless the model pools."""
        return {LOGITS: self.logits} if self.pooler is None else {POOLED: self.pooler}

    @property
    def scores(self) -> Embedding:
        """The table of the head."""
        return self.embed if self.head is None else self.head

    def logits(self, hidden: jax.Array, adapters: AdapterRows | None = None) -> jax.Array:
        """`hidden [R, E]` -> float32 logits `[R, V]`."""
        return self.scores.logits(hidden, adapters)


if TYPE_CHECKING:
    _: type[Model] = Decoder  # and so every family
