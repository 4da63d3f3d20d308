"""OLMoE: experts in every layer, queries and keys normalised over all heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import read_shared
from jaxengine.device.models.families.mixtral import MixtralForCausalLM
from jaxengine.device.models.shared.experts import TRAINING, ExpertsConfig, check_chosen, read_num_experts
from jaxengine.device.models.shared.rotary_decoder import WITHOUT_MLP, bias_rules
from jaxengine.device.weights.rules import Rule, repeat_kv_heads


class OlmoeForCausalLM(MixtralForCausalLM):
    """A `Model`."""

    WEIGHTS = (
        *WITHOUT_MLP,
        *bias_rules("q", "k", "v", "o"),
        Rule("layers.*.attention.q_norm.scale", "[model.]layers.*.self_attn.q_norm.weight"),
        Rule("layers.*.attention.k_norm.scale", "[model.]layers.*.self_attn.k_norm.weight", repeat_kv_heads),
        Rule("layers.*.mlp.router", "[model.]layers.*.mlp.gate.weight"),
        *(
            Rule(f"layers.*.mlp.{part}.weight", f"[model.]layers.*.mlp.experts.{{expert}}.{part}_proj.weight")
            for part in ("gate", "up", "down")
        ),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        "clip_qkv": Ignored("clipped projections are not built", allowed=(None,)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> ExpertsConfig:
        shared = read_shared(reader, kv_heads=None, head_dim=None, epsilon=1e-5)
        attention_bias = reader.optional("attention_bias", False, bool)
        experts = ExpertsShape(
            width=shared["hidden_size"],
            inner=shared["mlp_size"],
            activation=shared["activation"],
            routing=Routing(
                count=read_num_experts(reader, 64),
                chosen=reader.optional_size("num_experts_per_tok", 8),
                normalised=reader.optional("norm_topk_prob", False, bool),
            ),
        )
        check_chosen(experts)
        return ExpertsConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            qk_norm=True,
            experts=experts,
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), norm_all=True)
