"""OLMo 2: norms behind attention and feed-forward instead of before them, queries and keys normalised over all heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from jaxengine.device.layers.block import Norms
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import POST_NORM_WEIGHTS, RotaryDecoder, bias_rules
from jaxengine.device.weights.rules import Rule, repeat_kv_heads


class Olmo2ForCausalLM(RotaryDecoder):
    """`attention_bias` puts biases on all four projections of attention."""

    WEIGHTS = (
        *POST_NORM_WEIGHTS,
        *bias_rules("q", "k", "v", "o"),
        Rule("layers.*.attention.q_norm.scale", "[model.]layers.*.self_attn.q_norm.weight"),
        Rule("layers.*.attention.k_norm.scale", "[model.]layers.*.self_attn.k_norm.weight", repeat_kv_heads),
    )
    NORMS = Norms.POST
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "clip_qkv": Ignored("clipped projections are OLMo 1's", allowed=(None,)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=None, head_dim=None, epsilon=1e-5)
        attention_bias = reader.optional("attention_bias", False, bool)
        return RotaryDecoderConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            qk_norm=True,
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), norm_all=True)
