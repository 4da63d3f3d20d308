"""Seed-OSS: Llama with biases on queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder, bias_rules


class SeedOssForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = (*ROTARY_DECODER_WEIGHTS, *bias_rules("q", "k", "v", "o", "gate", "up", "down"))
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "residual_dropout": Ignored("only used in training"),
        "pretraining_tp": Ignored("slices projections as in training, which rounds differently", allowed=(None, 1)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=8, head_dim=128)
        return RotaryDecoderConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=reader.optional("attention_bias", True, bool),
            output_bias=reader.optional("attention_out_bias", False, bool),
            mlp_bias=reader.optional("mlp_bias", False, bool),
        )
