"""Encoders with BERT's norms whose positions turn queries and keys, and whose feed-forward has a gate: Nomic's and GTE's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.block import FeedForward
from jaxengine.device.layers.mlp import GatedMLP
from jaxengine.device.layers.rotary import Rope
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.decoder_config import read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rope import read_rope
from jaxengine.device.models.shared.encoder import Encoder, EncoderConfig
from jaxengine.errors import ConfigError

NAMES = {
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "positions": "max_position_embeddings",
    "mlp": "intermediate_size",
    "layers": "num_hidden_layers",
}
"""What transformers calls the sizes of an encoder."""


@dataclass(frozen=True, kw_only=True)
class RotaryEncoderConfig(EncoderConfig):
    """With `biases` projections of attention and the last one of feed-forward have some."""

    rope: Rope
    biases: bool


class RotaryEncoder(Encoder):
    """A `Model`."""

    config: RotaryEncoderConfig

    def attention_shape(self, layer: int) -> AttentionShape:
        """Of every layer."""
        config = self.config
        return AttentionShape(
            width=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            qkv_bias=config.biases,
            output_bias=config.biases,
            rope=0,
        )

    def feed_forward(self) -> FeedForward:
        """What a layer does with each token."""
        config = self.config
        return GatedMLP(
            config.hidden_size,
            config.mlp_size,
            activation=config.activation,
            bias=False,
            output_bias=config.biases,
            context=self.context,
        )

    def shared(self, positions: jax.Array) -> Shared:
        """The angles of all layers."""
        return Shared((self.config.rope.angles(positions),))


def read_rotary_encoder(
    reader: ConfigReader, names: dict[str, str], *, theta: float, activation: str, epsilon_key: str
) -> dict[str, Any]:
    """The fields that these families read alike; `names` are those of keys that differ."""
    hidden_size, num_heads = reader.size(names["width"]), reader.size(names["heads"])
    if hidden_size % num_heads or hidden_size // num_heads % 2:
        raise ConfigError(
            f"config.json: {names['heads']}={num_heads} must divide {names['width']}={hidden_size} evenly"
        )
    max_positions = reader.size(names["positions"])
    return {
        "vocab_size": reader.size("vocab_size"),
        "hidden_size": hidden_size,
        "mlp_size": reader.size(names["mlp"]),
        "num_layers": reader.size(names["layers"]),
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_dim": hidden_size // num_heads,
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": True,
        "whole_rows": True,
        "positions": False,
        "dtype": read_stored_dtype(reader),
        "epsilon": reader.optional(epsilon_key, 1e-12, float),
        "activation": activation,
        "rope": read_rope(reader, head_dim=hidden_size // num_heads, max_positions=max_positions, default=theta),
        "text_kinds": reader.optional("type_vocab_size", 0, int),
    }


def read_activation(reader: ConfigReader, key: str, default: str) -> str:
    """The gate's."""
    return reader.choice(key, default, ACTIVATIONS)
