"""Granite 3 and 4 (dense): Llama whose embeddings, scores, residual sums and logits are scaled by numbers of config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax

from jaxengine.device.layers.block import Block
from jaxengine.device.layers.self_attention import AttentionShape, SelfAttention
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder, bias_rules
from jaxengine.device.weights.rules import Ignore, Rule
from pallas_kernels import AdapterRows


@dataclass(frozen=True, kw_only=True)
class GraniteConfig(RotaryDecoderConfig):
    """Logits are divided by their scale, everything else is multiplied."""

    embedding_multiplier: float
    attention_multiplier: float
    residual_multiplier: float
    logits_scaling: float


def read_granite(reader: ConfigReader) -> dict[str, Any]:
    """The fields of `GraniteConfig`, its feed-forward's bias excepted."""
    shared = read_shared(reader, kv_heads=None, head_dim=None)
    attention_bias = reader.optional("attention_bias", False, bool)
    factors = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    return {
        **shared,
        "windows": (None,) * shared["num_layers"],
        "qkv_bias": attention_bias,
        "output_bias": attention_bias,
        "qk_norm": False,
        **{name: reader.optional(name, 1.0, float) for name in factors},
    }


class GraniteForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *ROTARY_DECODER_WEIGHTS,
        *bias_rules("q", "k", "v", "o", "gate", "up", "down"),
    )
    config: GraniteConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> GraniteConfig:
        return GraniteConfig(**read_granite(reader), mlp_bias=reader.optional("mlp_bias", False, bool))

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), scale=self.config.attention_multiplier)

    def block(self, layer: int) -> Block:
        attention = SelfAttention(self.attention_shape(layer), context=self.context)
        return Block(
            attention,
            self.feed_forward(layer),
            norm=self.make_norm,
            residual_multiplier=self.config.residual_multiplier,
        )

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        x, shared = super().embed_tokens(tokens, positions, adapters)
        return x * self.config.embedding_multiplier, shared

    def logits(self, hidden: jax.Array, adapters: AdapterRows | None = None) -> jax.Array:
        return super().logits(hidden, adapters) / self.config.logits_scaling
