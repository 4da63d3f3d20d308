"""Qwen3 (dense): Llama with queries and keys normalised per head, and windows in the later layers."""

from __future__ import annotations

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared, read_whole_rows, read_windows
from jaxengine.device.models.shared.rotary_decoder import QK_NORMS, ROTARY_DECODER_WEIGHTS, RotaryDecoder, bias_rules


class Qwen3ForCausalLM(RotaryDecoder):
    """`attention_bias` puts biases on all four projections of attention."""

    WEIGHTS = (
        *ROTARY_DECODER_WEIGHTS,
        *bias_rules("q", "k", "v", "o"),
        *QK_NORMS,
    )

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=32, head_dim=128)
        attention_bias = reader.optional("attention_bias", False, bool)
        return RotaryDecoderConfig(
            **shared,
            whole_rows=read_whole_rows(reader),
            windows=read_windows(reader, shared["num_layers"]),
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            qk_norm=True,
        )
