"""Qwen2 (and 1.5) with a mixture of experts, and one beside them that every token takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.routing import Routing
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import read_layer_types, read_shared
from jaxengine.device.models.shared.experts import (
    TRAINING,
    WEIGHED_SHARED_EXPERT,
    SharedExpertsConfig,
    SharedExpertsDecoder,
    check_chosen,
    read_expert_layers,
    read_num_experts,
)
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, bias_rules
from jaxengine.errors import ConfigError


class Qwen2MoeForCausalLM(SharedExpertsDecoder):
    """A `Model`. `mlp_only_layers` and `decoder_sparse_step` say which layers have no experts."""

    WEIGHTS = (
        *ROTARY_DECODER_WEIGHTS,
        *bias_rules("q", "k", "v"),
        *WEIGHED_SHARED_EXPERT,
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        "use_sliding_window": Ignored("windows of this family are not built", allowed=(False,)),
        **dict.fromkeys(("sliding_window", "max_window_layers"), Ignored("no layer sees a window")),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> SharedExpertsConfig:
        shared = read_shared(reader, kv_heads=16, head_dim=None)
        num_layers = shared["num_layers"]
        if "sliding_attention" in (read_layer_types(reader, num_layers) or ()):
            raise ConfigError(
                "config.json: layer_types asks for sliding_attention: windows of this family are not built"
            )
        experts = ExpertsShape(
            width=shared["hidden_size"],
            inner=reader.optional_size("moe_intermediate_size", 1408),
            activation=shared["activation"],
            routing=Routing(
                count=read_num_experts(reader, 60),
                chosen=reader.optional_size("num_experts_per_tok", 4),
                normalised=reader.optional("norm_topk_prob", False, bool),
            ),
        )
        check_chosen(experts)
        return SharedExpertsConfig(
            **shared,
            windows=(None,) * num_layers,
            qkv_bias=reader.optional("qkv_bias", True, bool),
            experts=experts,
            expert_layers=read_expert_layers(reader, num_layers),
            shared_size=reader.optional_size("shared_expert_intermediate_size", 5632),
            weighed=True,
        )
