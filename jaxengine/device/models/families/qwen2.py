"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, and windows in the later layers."""

from __future__ import annotations

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared, read_whole_rows, read_windows
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder, bias_rules


class Qwen2ForCausalLM(RotaryDecoder):
    """The first `max_window_layers` layers see everything; windows are off unless `use_sliding_window`."""

    WEIGHTS = (*ROTARY_DECODER_WEIGHTS, *bias_rules("q", "k", "v"))

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=32, head_dim=None)
        return RotaryDecoderConfig(
            **shared,
            whole_rows=read_whole_rows(reader),
            windows=read_windows(reader, shared["num_layers"]),
            qkv_bias=True,
        )
