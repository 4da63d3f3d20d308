"""The decoder that BLOOM and MPT share: no positions but the slopes of ALiBi, layer norms before each part."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from flax import nnx

from jaxengine.device.layers.block import Block
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import LayerNorm
from jaxengine.device.layers.self_attention import AttentionShape, SelfAttention
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.shared.decoder import Decoder
from pallas_kernels import AdapterRows


@dataclass(frozen=True, kw_only=True)
class AlibiConfig(DecoderConfig):
    """`bias` is that of projections and norms; `embedding_norm` normalises what enters."""

    norm_epsilon: float
    activation: str
    bias: bool
    scale: float
    slopes: tuple[float, ...]
    embedding_norm: bool


class AlibiDecoder(Decoder):
    """A `Model`."""

    config: AlibiConfig

    def __init__(self, config: AlibiConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        width = config.hidden_size

        def norm() -> LayerNorm:
            return LayerNorm(width, epsilon=config.norm_epsilon, affine=True, bias=config.bias, context=context)

        def layer() -> Block:
            shape = AttentionShape(
                width=width,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                qkv_bias=config.bias,
                output_bias=config.bias,
                scale=config.scale,
                slopes=config.slopes,
            )
            mlp = MLP(width, config.mlp_size, activation=config.activation, bias=config.bias, context=context)
            return Block(SelfAttention(shape, context=context), mlp, norm=norm)

        self.embedding_norm = norm() if config.embedding_norm else None
        self.layers = nnx.List([layer() for _ in range(config.num_layers)])
        self.norm = norm()

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        x = self.embed(tokens, adapters)
        return x if self.embedding_norm is None else self.embedding_norm(x), Shared()

    def final_norm(self, x: jax.Array) -> jax.Array:
        return self.norm(x)
