"""What encoders share: tokens that see their whole row, embeddings of words, of positions and of the kind of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.contract.pooling import Pooling
from jaxengine.device.layers.block import Block, FeedForward, Norms
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.embedding import LearnedPositions
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import LayerNorm
from jaxengine.device.layers.pooler import ProjectionShape
from jaxengine.device.layers.row_attention import RowAttention
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.stack import Layer
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.shared.decoder import Decoder
from pallas_kernels import AdapterRows


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(DecoderConfig):
    """`position_offset` rows stand before those of positions, which without `positions` enter otherwise.

    There is an embedding for each of `text_kinds`, 0 being none. `embedding_size` is the width of embeddings that a projection
    brings to the hidden size; None: they have it.
    """

    epsilon: float
    activation: str
    positions: bool = True
    position_offset: int = 0
    embedding_size: int | None = None


class Encoder(Decoder):
    """A `Model` with BERT's layers: norms behind each sum with the residual stream, biases everywhere.

    Tokens from the vocabulary's size on are those of the second text of a pair: ids that much larger.
    """

    POOLING: ClassVar[Pooling] = Pooling.FIRST
    config: EncoderConfig

    def __init__(self, config: EncoderConfig, context: ModelContext) -> None:
        width = config.embedding_size or config.hidden_size
        super().__init__(config, context, width=width)
        self.positions = (
            LearnedPositions(config.max_position_embeddings, width, offset=config.position_offset, context=context)
            if config.positions
            else None
        )
        self.kinds = (
            LearnedPositions(config.text_kinds, width, offset=0, context=context) if config.text_kinds else None
        )
        self.embed_norm = self.make_norm(width)
        self.project_in = (
            None
            if config.embedding_size is None
            else Linear(width, config.hidden_size, axes=("embed", "word_embed"), bias=True, context=context)
        )
        self.layers = nnx.List(self.make_layers())

    def make_norm(self, width: int | None = None) -> LayerNorm:
        """A norm of the residual stream, or of embeddings of another `width`."""
        return LayerNorm(
            width or self.config.hidden_size, epsilon=self.config.epsilon, affine=True, context=self.context
        )

    def make_layers(self) -> list[Layer]:
        """All of them."""
        return [self.block(layer) for layer in range(self.config.num_layers)]

    def block(self, layer: int) -> Layer:
        """The layer of this number."""
        attention = RowAttention(self.attention_shape(layer), context=self.context)
        return Block(attention, self.feed_forward(), norm=self.make_norm, norms=Norms.POST_SUM)

    def attention_shape(self, layer: int) -> AttentionShape:
        """Of the layer of this number."""
        config = self.config
        return AttentionShape(
            width=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=self.attention_scale(),
            qkv_bias=True,
            output_bias=True,
        )

    def attention_scale(self) -> float:
        """Of scores."""
        return float(self.config.head_dim**-0.5)

    def feed_forward(self) -> FeedForward:
        """What a layer does with each token."""
        config = self.config
        return MLP(config.hidden_size, config.mlp_size, activation=config.activation, bias=True, context=self.context)

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        size = self.config.vocab_size
        second = (tokens >= size).astype(jnp.int32)
        x = self.embed(tokens - size * second, adapters)
        if self.kinds is not None:
            x = x + self.kinds(jnp.minimum(second, self.config.text_kinds - 1))
        if self.positions is not None:
            x = x + self.positions(positions)
        x = self.embed_norm(x)
        return x if self.project_in is None else self.project_in(x, None), self.shared(positions)

    def shared(self, positions: jax.Array) -> Shared:
        """What all layers are given."""
        return Shared()

    def final_norm(self, x: jax.Array) -> jax.Array:
        """The stream as it is: the last layer has ended in a norm."""
        return x


def classifier_behind(
    config: DecoderConfig, num_labels: int, *, inner: str, activation: str, outer: str
) -> tuple[ProjectionShape, ...]:
    """Two projections of a classifier of rows, by their names in the checkpoint."""
    width = config.hidden_size
    return (
        ProjectionShape(inputs=width, outputs=width, source=inner, bias=True, activation=activation),
        ProjectionShape(inputs=width, outputs=num_labels, source=outer, bias=True),
    )
