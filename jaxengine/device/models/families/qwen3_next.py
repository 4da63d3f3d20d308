"""Qwen3-Next: gated delta rules and gated attention, and experts beside one that every token takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxengine.device.layers.delta_net import DeltaNetShape
from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.routing import Routing
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.shared.delta_hybrid import (
    DELTA_HYBRID_WEIGHTS,
    NET,
    RULES,
    DeltaHybrid,
    DeltaHybridConfig,
    read_delta_hybrid,
)
from jaxengine.device.models.shared.experts import (
    TRAINING,
    WEIGHED_SHARED_EXPERT,
    SharedExpertsConfig,
    SharedExpertsDecoder,
    check_chosen,
    read_expert_layers,
    read_num_experts,
)
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule, Transform

PROJECTED = {"q": 0, "k": 1, "v": 2, "gate": 3}
OF_HEADS = {"rate": 0, "decay": 1}


def _of_key_heads(number: int, *, vectors: bool) -> Transform:
    """One part of a tensor that has of each head of keys all that belongs to it, `vectors` or a number for each head."""

    def cut(fused: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
        net: DeltaNetShape = config.delta_net  # type: ignore[attr-defined]
        each = net.heads // net.key_heads
        of_values = each * net.value_size
        sizes = (net.key_size, net.key_size, of_values, of_values) if vectors else (each, each)
        by_head = fused.reshape(net.key_heads, sum(sizes), *fused.shape[1:])
        begin = sum(sizes[:number])
        return by_head[:, begin : begin + sizes[number]].reshape(-1, *fused.shape[1:])

    return cut


@dataclass(frozen=True, kw_only=True)
class Qwen3NextConfig(DeltaHybridConfig, SharedExpertsConfig):
    """Layers of delta rules, and experts."""


class Qwen3NextForCausalLM(DeltaHybrid, SharedExpertsDecoder):
    """A `Model`. `mlp_only_layers` and `decoder_sparse_step` say which layers have no experts."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *DELTA_HYBRID_WEIGHTS,
        *(
            Rule(f"{RULES}.{x}.weight", f"{NET}.in_proj_qkvz.weight", _of_key_heads(number, vectors=True))
            for x, number in PROJECTED.items()
        ),
        *(
            Rule(f"{RULES}.{x}.weight", f"{NET}.in_proj_ba.weight", _of_key_heads(number, vectors=False))
            for x, number in OF_HEADS.items()
        ),
        *WEIGHED_SHARED_EXPERT,
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {**DeltaHybrid.IGNORED, **TRAINING}
    config: Qwen3NextConfig  # type: ignore[assignment]

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Qwen3NextConfig:
        shared = read_delta_hybrid(reader, kv_heads=2)
        return Qwen3NextConfig(
            **shared,
            **read_weighed_experts(
                reader,
                shared,
                count=512,
                chosen=10,
                normalised=reader.optional("norm_topk_prob", True, bool),
            ),
            expert_layers=read_expert_layers(reader, shared["num_layers"]),
        )


def read_weighed_experts(
    reader: ConfigReader, shared: Mapping[str, Any], *, count: int, chosen: int, normalised: bool
) -> dict[str, Any]:
    """Experts and the one of all tokens, with the family's defaults."""
    experts = ExpertsShape(
        width=shared["hidden_size"],
        inner=reader.optional_size("moe_intermediate_size", 512),
        activation=shared["activation"],
        routing=Routing(
            count=read_num_experts(reader, count),
            chosen=reader.optional_size("num_experts_per_tok", chosen),
            normalised=normalised,
        ),
    )
    check_chosen(experts)
    return {
        "experts": experts,
        "shared_size": reader.optional_size("shared_expert_intermediate_size", 512),
        "weighed": True,
    }
