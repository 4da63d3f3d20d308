"""InternLM 3: Llama under other names of its biases."""

from __future__ import annotations

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder, bias_rules


class InternLM3ForCausalLM(RotaryDecoder):
    """`qkv_bias` is of queries, keys and values, `bias` of all other projections."""

    WEIGHTS = (*ROTARY_DECODER_WEIGHTS, *bias_rules("q", "k", "v", "o", "gate", "up", "down"))

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=2, head_dim=128, epsilon=1e-5)
        bias = reader.optional("bias", False, bool)
        return RotaryDecoderConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=reader.optional("qkv_bias", False, bool),
            output_bias=bias,
            mlp_bias=bias,
        )
