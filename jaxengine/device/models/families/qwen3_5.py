"""Qwen3.5: Qwen3-Next's layers with plain feed-forwards or with experts, by itself or out of a model that also sees pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_rules, language_section
from jaxengine.device.models.families.qwen3_next import Qwen3NextConfig, Qwen3NextForCausalLM, read_weighed_experts
from jaxengine.device.models.shared.delta_hybrid import (
    DELTA_HYBRID_WEIGHTS,
    NET,
    RULES,
    DeltaHybrid,
    DeltaHybridConfig,
    channels,
    read_delta_hybrid,
)
from jaxengine.device.models.shared.experts import MLP, WEIGHED_SHARED_EXPERT
from jaxengine.device.weights.rules import Ignore, Rule, part, piece

PROJECTIONS = {"gate": "in_proj_z", "rate": "in_proj_b", "decay": "in_proj_a"}
QWEN3_5_WEIGHTS: tuple[Rule | Ignore, ...] = (
    *DELTA_HYBRID_WEIGHTS,
    *(
        Rule(f"{RULES}.{x}.weight", f"{NET}.in_proj_qkv.weight", piece(number, channels))
        for number, x in enumerate("qkv")
    ),
    *(Rule(f"{RULES}.{ours}.weight", f"{NET}.{theirs}.weight") for ours, theirs in PROJECTIONS.items()),
)
FUSED_EXPERTS = (
    Rule("layers.*.mlp.routed.gate.weight", f"{MLP}.experts.gate_up_proj", part(0, 2), each=True),
    Rule("layers.*.mlp.routed.up.weight", f"{MLP}.experts.gate_up_proj", part(1, 2), each=True),
    Rule("layers.*.mlp.routed.down.weight", f"{MLP}.experts.down_proj", each=True),
)
"""As transformers 5 holds them; it saves each expert by itself."""
PICTURES = dict.fromkeys(
    ("vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    Ignored("pictures are refused"),
)

ONE_KIND = {"mlp_only_layers": Ignored("the layers' networks are of one kind", allowed=([],))}


class Qwen3_5ForCausalLM(DeltaHybrid):  # noqa: N801 - the architecture's name
    """A `Model`."""

    IGNORED: ClassVar[Mapping[str, Ignored]] = {**DeltaHybrid.IGNORED, **ONE_KIND}
    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = QWEN3_5_WEIGHTS

    @classmethod
    def read_config(cls, reader: ConfigReader) -> DeltaHybridConfig:
        return DeltaHybridConfig(**read_delta_hybrid(reader, kv_heads=4))


class Qwen3_5ForConditionalGeneration(Qwen3_5ForCausalLM):  # noqa: N801
    """The language model of one that also sees pictures, of which only text is asked."""

    WEIGHTS = language_rules(Qwen3_5ForCausalLM.WEIGHTS, ("visual",))
    IGNORED: ClassVar[Mapping[str, Ignored]] = PICTURES

    @classmethod
    def read_config(cls, reader: ConfigReader) -> DeltaHybridConfig:
        return super().read_config(language_section(reader, Qwen3_5ForCausalLM.IGNORED))


class Qwen3_5MoeForCausalLM(Qwen3NextForCausalLM):  # noqa: N801
    """A `Model`. All layers have experts."""

    IGNORED: ClassVar[Mapping[str, Ignored]] = {**Qwen3NextForCausalLM.IGNORED, **ONE_KIND}
    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *(row for row in QWEN3_5_WEIGHTS if not isinstance(row, Rule) or ".mlp." not in row.target),
        *WEIGHED_SHARED_EXPERT,
        *FUSED_EXPERTS,
    )

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Qwen3NextConfig:
        reader.raw("intermediate_size")  # no layer has one
        shared = read_delta_hybrid(reader, kv_heads=2, mlp_key="moe_intermediate_size")
        return Qwen3NextConfig(
            **shared,
            **read_weighed_experts(reader, shared, count=256, chosen=8, normalised=True),
            expert_layers=tuple(range(shared["num_layers"])),
        )


class Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeForCausalLM):  # noqa: N801
    """As `Qwen3_5ForConditionalGeneration`."""

    WEIGHTS = language_rules(Qwen3_5MoeForCausalLM.WEIGHTS, ("visual",))
    IGNORED: ClassVar[Mapping[str, Ignored]] = PICTURES

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Qwen3NextConfig:
        return super().read_config(language_section(reader, Qwen3_5MoeForCausalLM.IGNORED))
