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
from jaxengine.device.models.shared.experts import SPARSE_BLOCK, TRAINING, ExpertsConfig, check_chosen
from jaxengine.device.models.shared.rotary_decoder import WITHOUT_MLP, bias_rules
from jaxengine.device.weights.rules import Rule, part


@dataclass(frozen=True, kw_only=True)
class GraniteMoeConfig(GraniteConfig, ExpertsConfig):
    """Granite's factors, and experts in all layers."""

    experts: ExpertsShape


class GraniteMoeForCausalLM(GraniteForCausalLM):
    """A `Model`."""

    WEIGHTS = (
        *WITHOUT_MLP,
        *bias_rules("q", "k", "v", "o"),
        Rule("layers.*.mlp.router", f"{SPARSE_BLOCK}.router.layer.weight"),
        Rule("layers.*.mlp.gate.weight", f"{SPARSE_BLOCK}.input_linear.weight", part(0, 2), each=True),
        Rule("layers.*.mlp.up.weight", f"{SPARSE_BLOCK}.input_linear.weight", part(1, 2), each=True),
        Rule("layers.*.mlp.down.weight", f"{SPARSE_BLOCK}.output_linear.weight", each=True),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = TRAINING
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
        return GraniteMoeConfig(**shared, experts=experts)

    def feed_forward(self, layer: int) -> FeedForward:
        return SparseMLP(self.config.experts, context=self.context)
