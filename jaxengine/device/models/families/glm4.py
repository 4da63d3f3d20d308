"""GLM-4: of each head half the channels turn, neighbours with each other; GLM-4-0414 has norms on both sides of each part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from jaxengine.device.layers.block import Norms
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import (
    ROTARY_DECODER_WEIGHTS,
    RotaryDecoder,
    bias_rules,
    half_split_rotary,
)
from jaxengine.device.weights.rules import Ignore, Rule, part

GATE_UP = "[model.]layers.*.mlp.gate_up_proj.weight"
EPSILON = 1.5625e-7


class GlmForCausalLM(RotaryDecoder):
    """GLM-4-9B. A `Model`. Gate and up are one matrix in its checkpoints."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = half_split_rotary(
        (
            *(
                row
                for row in ROTARY_DECODER_WEIGHTS
                if not isinstance(row, Rule) or row.target not in ("layers.*.mlp.gate.weight", "layers.*.mlp.up.weight")
            ),
            Rule("layers.*.mlp.gate.weight", GATE_UP, part(0, 2)),
            Rule("layers.*.mlp.up.weight", GATE_UP, part(1, 2)),
            *bias_rules("q", "k", "v"),
        )
    )

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=2, head_dim=128, epsilon=EPSILON, partial_rotary=0.5, interleaved=True)
        return RotaryDecoderConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=reader.optional("attention_bias", True, bool),
        )


class Glm4ForCausalLM(GlmForCausalLM):
    """GLM-4-0414 and GLM-Z1. A `Model`."""

    WEIGHTS = (
        *GlmForCausalLM.WEIGHTS,
        Rule("layers.*.attention_output_norm.scale", "[model.]layers.*.post_self_attn_layernorm.weight"),
        Rule("layers.*.mlp_output_norm.scale", "[model.]layers.*.post_mlp_layernorm.weight"),
    )
    NORMS = Norms.SANDWICH
