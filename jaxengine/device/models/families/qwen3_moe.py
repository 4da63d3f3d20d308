"""Qwen3 with a mixture of experts in place of the feed-forward of most layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jaxengine.device.layers.block import FeedForward
from jaxengine.device.layers.experts import ExpertsShape, SparseMLP
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.sharding import Layout, check_divisible
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared, read_windows
from jaxengine.device.models.families.qwen3 import Qwen3ForCausalLM
from jaxengine.device.models.shared.experts import TRAINING, check_chosen, read_expert_layers, read_num_experts
from jaxengine.device.weights.rules import Rule


@dataclass(frozen=True, kw_only=True)
class Qwen3MoeConfig(RotaryDecoderConfig):
    """The layers with these numbers have `experts`; the others have a feed-forward of `mlp_size`."""

    experts: ExpertsShape
    expert_layers: tuple[int, ...]

    def check_layout(self, layout: Layout) -> None:
        mlp = self.mlp_size if len(self.expert_layers) < self.num_layers else 0
        check_divisible(layout.shards("heads"), heads=self.num_heads, kv_heads=self.num_kv_heads, mlp=mlp)
        layout.check_experts(count=self.experts.count, inner=self.experts.inner)


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    """`mlp_only_layers` and `decoder_sparse_step` say which layers have no experts."""

    WEIGHTS = (
        *Qwen3ForCausalLM.WEIGHTS,
        Rule("layers.*.mlp.router", "[model.]layers.*.mlp.gate.weight"),
        *(
            Rule(f"layers.*.mlp.{part}.weight", f"[model.]layers.*.mlp.experts.{{expert}}.{part}_proj.weight")
            for part in ("gate", "up", "down")
        ),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        "qkv_bias": Ignored("attention_bias is what is read", allowed=(False,)),
        "use_qk_norm": Ignored("queries and keys are always normalised", allowed=(True,)),
        "shared_expert_intermediate_size": Ignored("an expert of all tokens is other families'", allowed=(0, None)),
    }

    config: Qwen3MoeConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Qwen3MoeConfig:
        shared = read_shared(reader, kv_heads=4, head_dim=None)
        attention_bias = reader.optional("attention_bias", False, bool)
        num_layers = shared["num_layers"]
        experts = ExpertsShape(
            width=shared["hidden_size"],
            inner=reader.optional_size("moe_intermediate_size", 768),
            activation=shared["activation"],
            routing=Routing(
                count=read_num_experts(reader, 128),
                chosen=reader.optional_size("num_experts_per_tok", 8),
                normalised=reader.optional("norm_topk_prob", False, bool),
            ),
        )
        check_chosen(experts)
        return Qwen3MoeConfig(
            **shared,
            windows=read_windows(reader, num_layers),
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            qk_norm=True,
            experts=experts,
            expert_layers=read_expert_layers(reader, num_layers),
        )

    def feed_forward(self, layer: int) -> FeedForward:
        if layer in self.config.expert_layers:
            return SparseMLP(self.config.experts, context=self.context)
        return super().feed_forward(layer)
