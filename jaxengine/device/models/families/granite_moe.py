"""Granite 3 with experts in every layer; a checkpoint has those of a layer in one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jaxengine.device.layers.block import FeedForward
from jaxengine.device.layers.experts import ExpertsShape, SparseMLP
from jaxengine.device.layers.routing import Routing
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.families.granite import GraniteConfig, GraniteForCausalLM, read_granite
from jaxengine.device.models.families.mixtral import EXPERTS, MixtralConfig, check_chosen
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, bias_rules
from jaxengine.device.weights.rules import Rule, part


@dataclass(frozen=True, kw_only=True)
class GraniteMoeConfig(GraniteConfig, MixtralConfig):
    """Granite's factors, and experts in all layers."""

    experts: ExpertsShape


class GraniteMoeForCausalLM(GraniteForCausalLM):
    """A `CausalLM`."""

    WEIGHTS = (
        *(row for row in ROTARY_DECODER_WEIGHTS if not isinstance(row, Rule) or ".mlp." not in row.target),
        *bias_rules("q", "k", "v", "o"),
        Rule("layers.*.mlp.router", f"{EXPERTS}.router.layer.weight"),
        Rule("layers.*.mlp.gate.weight", f"{EXPERTS}.input_linear.weight", part(0, 2), each=True),
        Rule("layers.*.mlp.up.weight", f"{EXPERTS}.input_linear.weight", part(1, 2), each=True),
        Rule("layers.*.mlp.down.weight", f"{EXPERTS}.output_linear.weight", each=True),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = dict.fromkeys(
        ("output_router_logits", "router_aux_loss_coef"), Ignored("only used in training")
    )
    config: GraniteMoeConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> GraniteMoeConfig:
        shared = read_granite(reader)
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
        return GraniteMoeConfig(**shared, mlp_bias=False, experts=experts)

    def feed_forward(self, layer: int) -> FeedForward:
        return SparseMLP(self.config.experts, context=self.context)
