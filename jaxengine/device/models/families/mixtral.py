"""Mixtral: Mistral with a mixture of experts in place of every feed-forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxengine.device.layers.block import FeedForward
from jaxengine.device.layers.experts import ExpertsShape, SparseMLP
from jaxengine.device.layers.routing import Routing
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import read_shared
from jaxengine.device.models.shared.experts import SPARSE_BLOCK, ExpertsConfig, check_chosen
from jaxengine.device.models.shared.rotary_decoder import WITHOUT_MLP, RotaryDecoder
from jaxengine.device.weights.rules import Ignore, Rule


class MixtralForCausalLM(RotaryDecoder):
    """A `Model`. A token's weights are the softmax over the experts that it goes to."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *WITHOUT_MLP,
        Rule("layers.*.mlp.router", f"{SPARSE_BLOCK}.gate.weight"),
        Rule("layers.*.mlp.gate.weight", f"{SPARSE_BLOCK}.experts.{{expert}}.w1.weight"),
        Rule("layers.*.mlp.down.weight", f"{SPARSE_BLOCK}.experts.{{expert}}.w2.weight"),
        Rule("layers.*.mlp.up.weight", f"{SPARSE_BLOCK}.experts.{{expert}}.w3.weight"),
        # as llm-compressor writes them since it takes experts apart
        Rule("layers.*.mlp.gate.weight", f"{SPARSE_BLOCK}.experts.{{expert}}.gate_proj.weight"),
        Rule("layers.*.mlp.down.weight", f"{SPARSE_BLOCK}.experts.{{expert}}.down_proj.weight"),
        Rule("layers.*.mlp.up.weight", f"{SPARSE_BLOCK}.experts.{{expert}}.up_proj.weight"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = dict.fromkeys(
        ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise"), Ignored("only used in training")
    )
    config: ExpertsConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> ExpertsConfig:
        shared = read_shared(reader, kv_heads=8, head_dim=None, theta=1e6, epsilon=1e-5)
        experts = ExpertsShape(
            width=shared["hidden_size"],
            inner=shared["mlp_size"],
            activation=shared["activation"],
            routing=Routing(
                count=reader.optional_size("num_local_experts", 8),
                chosen=reader.optional_size("num_experts_per_tok", 2),
                normalised=True,
            ),
        )
        check_chosen(experts)
        return ExpertsConfig(
            **shared,
            windows=(reader.nullable_size("sliding_window", None),) * shared["num_layers"],
            experts=experts,
        )

    def feed_forward(self, layer: int) -> FeedForward:
        return SparseMLP(self.config.experts, context=self.context)
