"""LFM2 with experts behind its first layers, chosen by their sigmoids and a bias that counts only then."""

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
from jaxengine.device.models.families.lfm2 import Lfm2Config, Lfm2ForCausalLM
from jaxengine.device.models.shared.experts import TRAINING, check_chosen, read_num_experts
from jaxengine.device.weights.rules import Rule

EXPERTS = "[model.]layers.*.feed_forward"


@dataclass(frozen=True, kw_only=True)
class Lfm2MoeConfig(Lfm2Config):
    """The first `num_dense_layers` have a feed-forward of `mlp_size`, the others `experts`."""

    experts: ExpertsShape
    num_dense_layers: int

    def check_layout(self, layout: Layout) -> None:
        mlp = self.mlp_size if self.num_dense_layers else 0
        check_divisible(layout.shards("heads"), heads=self.num_heads, kv_heads=self.num_kv_heads, mlp=mlp)
        layout.check_experts(count=self.experts.count, inner=self.experts.inner)


class Lfm2MoeForCausalLM(Lfm2ForCausalLM):
    """A `Model`."""

    WEIGHTS = (
        *Lfm2ForCausalLM.WEIGHTS,
        Rule("layers.*.mlp.router", f"{EXPERTS}.gate.weight"),
        Rule("layers.*.mlp.correction", f"{EXPERTS}.expert_bias"),
        *(
            Rule(f"layers.*.mlp.{part}.weight", f"{EXPERTS}.experts.{{expert}}.{stored}.weight")
            for part, stored in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
        ),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {**Lfm2ForCausalLM.IGNORED, **TRAINING}
    config: Lfm2MoeConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Lfm2MoeConfig:
        dense = Lfm2ForCausalLM.read_config(reader)
        experts = ExpertsShape(
            width=dense.hidden_size,
            inner=reader.optional_size("moe_intermediate_size", 1792),
            activation=dense.activation,
            routing=Routing(
                count=read_num_experts(reader, 32),
                chosen=reader.optional_size("num_experts_per_tok", 4),
                normalised=reader.optional("norm_topk_prob", True, bool),
                sigmoid=True,
                corrected=reader.optional("use_expert_bias", True, bool),
                scale=reader.optional("routed_scaling_factor", 1.0, float),
            ),
        )
        check_chosen(experts)
        return Lfm2MoeConfig(
            **{**vars(dense), "experts": experts, "mlp_size": reader.optional_size("intermediate_size", 7168)},
            num_dense_layers=reader.optional("num_dense_layers", 2, int),
        )

    def feed_forward(self, layer: int) -> FeedForward:
        if layer < self.config.num_dense_layers:
            return super().feed_forward(layer)
        return SparseMLP(self.config.experts, context=self.context)
