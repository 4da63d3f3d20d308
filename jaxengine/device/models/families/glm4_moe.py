"""GLM-4.5, 4.6 and 4.7: experts behind the first layers, chosen as DeepSeek V3 chooses; of each head half the channels turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import read_shared
from jaxengine.device.models.shared.experts import (
    CORRECTION,
    DRAFTS,
    SHARED_EXPERTS,
    TRAINING,
    SharedExpertsConfig,
    SharedExpertsDecoder,
    check_chosen,
    read_corrected_routing,
    read_drafts,
)
from jaxengine.device.models.shared.rotary_decoder import (
    ROTARY_DECODER_WEIGHTS,
    bias_rules,
    half_split,
    half_split_rotary,
)
from jaxengine.device.weights.rules import Rule

NORMS = (
    Rule("layers.*.attention.q_norm.scale", "[model.]layers.*.self_attn.q_norm.weight", half_split),
    Rule("layers.*.attention.k_norm.scale", "[model.]layers.*.self_attn.k_norm.weight", half_split),
)


class Glm4MoeForCausalLM(SharedExpertsDecoder):
    """A `Model`. `use_qk_norm` normalises heads of queries and keys."""

    WEIGHTS = (
        *half_split_rotary((*ROTARY_DECODER_WEIGHTS, *bias_rules("q", "k", "v"))),
        *NORMS,
        *SHARED_EXPERTS,
        CORRECTION,
        DRAFTS,
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = TRAINING

    @classmethod
    def read_config(cls, reader: ConfigReader) -> SharedExpertsConfig:
        shared = read_shared(reader, kv_heads=8, head_dim=None, epsilon=1e-5, partial_rotary=0.5)
        num_layers = shared["num_layers"]
        inner = reader.optional_size("moe_intermediate_size", 1408)
        experts = ExpertsShape(
            width=shared["hidden_size"],
            inner=inner,
            activation=shared["activation"],
            routing=read_corrected_routing(reader, count=128, chosen=8, groups=1, chosen_groups=1, scale=1.0),
        )
        check_chosen(experts)
        return SharedExpertsConfig(
            **shared,
            windows=(None,) * num_layers,
            qkv_bias=reader.optional("attention_bias", False, bool),
            qk_norm=reader.optional("use_qk_norm", False, bool),
            experts=experts,
            expert_layers=tuple(range(reader.optional("first_k_dense_replace", 1, int), num_layers)),
            shared_size=inner * reader.optional_size("n_shared_experts", 1),
            draft_layers=read_drafts(reader, num_layers, default=1),
        )
