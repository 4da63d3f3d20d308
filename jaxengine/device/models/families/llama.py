"""Llama 2, 3, 3.1, 3.2, every checkpoint of that architecture, and embedding models of it whose tokens see the whole text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from jaxengine.contract.pooling import Pooling
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared, read_whole_rows
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
            whole_rows=read_whole_rows(reader),
            windows=(None,) * shared["num_layers"],
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            mlp_bias=reader.optional("mlp_bias", False, bool),
        )


class LlamaBidirectionalModel(LlamaForCausalLM):
    """`pooling` says what stands for a text; a classifier of this kind is a projection of that."""

    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **LlamaForCausalLM.IGNORED,
        "temperature": Ignored("of training"),
    }
    POOLING: ClassVar[Pooling] = Pooling.MEAN
    POOLINGS: ClassVar[Mapping[str, Pooling]] = {"avg": Pooling.MEAN, "cls": Pooling.FIRST, "last": Pooling.LAST}

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        pooling = cls.POOLINGS[reader.choice("pooling", "avg", cls.POOLINGS)]
        return replace(super().read_config(reader), whole_rows=True, pooling=pooling, text_pooling=pooling)
