"""Llama 2, 3, 3.1, 3.2 and every checkpoint of that architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder, bias_rules


class LlamaForCausalLM(RotaryDecoder):
    """`attention_bias` puts biases on all four projections of attention, `mlp_bias` on the three of feed-forward."""

    WEIGHTS = (*ROTARY_DECODER_WEIGHTS, *bias_rules("q", "k", "v", "o", "gate", "up", "down"))
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "pretraining_tp": Ignored("slices projections as in training, which rounds differently", allowed=(None, 1)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=None, head_dim=None)
        attention_bias = reader.optional("attention_bias", False, bool)
        return RotaryDecoderConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            mlp_bias=reader.optional("mlp_bias", False, bool),
        )
