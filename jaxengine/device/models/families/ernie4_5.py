"""ERNIE 4.5 (dense): Llama whose heads turn channels that lie side by side."""

from __future__ import annotations

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import (
    ROTARY_DECODER_WEIGHTS,
    RotaryDecoder,
    bias_rules,
    half_split_rotary,
)


class Ernie4_5ForCausalLM(RotaryDecoder):  # noqa: N801 - the name in config.json
    """A `Model`. `use_bias` puts biases on every projection."""

    WEIGHTS = half_split_rotary((*ROTARY_DECODER_WEIGHTS, *bias_rules("q", "k", "v", "o", "gate", "up", "down")))

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(
            reader, kv_heads=2, head_dim=128, tied=True, epsilon=1e-5, theta=500_000.0, interleaved=True
        )
        bias = reader.optional("use_bias", False, bool)
        return RotaryDecoderConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=bias,
        )
