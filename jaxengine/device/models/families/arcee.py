"""Arcee's AFM: Llama with a plain feed-forward of squared ReLUs."""

from __future__ import annotations

from jaxengine.device.layers.block import FeedForward
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder, bias_rules
from jaxengine.device.weights.rules import Rule


class ArceeForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = (
        *(row for row in ROTARY_DECODER_WEIGHTS if not isinstance(row, Rule) or ".mlp.gate." not in row.target),
        *bias_rules("q", "k", "v", "o", "up", "down"),
    )

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=None, head_dim=None, epsilon=1e-5, activation="relu2")
        attention_bias = reader.optional("attention_bias", False, bool)
        return RotaryDecoderConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            mlp_bias=reader.optional("mlp_bias", False, bool),
            qk_norm=False,
        )

    def feed_forward(self, layer: int) -> FeedForward:
        config = self.config
        return MLP(
            config.hidden_size,
            config.mlp_size,
            activation=config.activation,
            bias=config.mlp_bias,
            context=self.context,
        )
