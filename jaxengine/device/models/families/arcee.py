"""Arcee's AFM: Llama with a plain feed-forward of squared ReLUs."""

from __future__ import annotations

from jaxengine.device.layers.mlp import MLP
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import WITHOUT_MLP, RotaryDecoder, bias_rules
from jaxengine.device.weights.rules import Rule


class ArceeForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = (
        *WITHOUT_MLP,
        Rule("layers.*.mlp.up.weight", "[model.]layers.*.mlp.up_proj.weight"),
        Rule("layers.*.mlp.down.weight", "[model.]layers.*.mlp.down_proj.weight"),
        *bias_rules("q", "k", "v", "o", "up", "down"),
    )
    FEED_FORWARD = MLP

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
        )
