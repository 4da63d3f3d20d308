"""Mistral 7B and its successors of that architecture: Llama with one sliding window for all layers."""

from __future__ import annotations

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder


class MistralForCausalLM(RotaryDecoder):
    """`sliding_window` null is full attention; a missing key is Hugging Face's default of 4,096."""

    WEIGHTS = ROTARY_DECODER_WEIGHTS

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=8, head_dim=None)
        return RotaryDecoderConfig(
            **shared,
            windows=(reader.nullable_size("sliding_window", 4096),) * shared["num_layers"],
        )
