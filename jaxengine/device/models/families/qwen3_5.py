"""Qwen3.5: Qwen3-Next's layers with plain feed-forwards or with experts, by itself or as a model that also sees pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

from jaxengine.contract.media import Modality
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_section, tower_section
from jaxengine.device.models.config.rope import AXES, read_axes
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
from jaxengine.device.models.shared.seeing import Seeing, seeing_rules
from jaxengine.device.models.towers.qwen_vl import Qwen3_5VisionTower
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
SECTIONS = (11, 11, 10)
TOKENS = dict.fromkeys(
    ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    Ignored("read where prompts are taken in"),
)

ONE_KIND = {"mlp_only_layers": Ignored("the layers' networks are of one kind", allowed=([],))}


class Qwen3_5ForCausalLM(DeltaHybrid):  # noqa: N801 - the architecture's name
    """A `Model`."""

    IGNORED: ClassVar[Mapping[str, Ignored]] = {**DeltaHybrid.IGNORED, **ONE_KIND}
    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = QWEN3_5_WEIGHTS

    @classmethod
    def read_config(cls, reader: ConfigReader) -> DeltaHybridConfig:
        return DeltaHybridConfig(**read_delta_hybrid(reader, kv_heads=4))


class Qwen3_5ForConditionalGeneration(Seeing, Qwen3_5ForCausalLM):  # noqa: N801
    """The sizes that also see pictures and videos, by positions in three axes."""

    TOWER = Qwen3_5VisionTower
    MODALITIES = (Modality.IMAGE, Modality.VIDEO)
    NUM_AXES = AXES
    WEIGHTS = seeing_rules(Qwen3_5ForCausalLM.WEIGHTS, Qwen3_5VisionTower.WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = TOKENS

    @classmethod
    def read_config(cls, reader: ConfigReader) -> DeltaHybridConfig:
        section = language_section(reader, Qwen3_5ForCausalLM.IGNORED)
        return _seeing(reader, section, Qwen3_5ForCausalLM.read_config(section))


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


class Qwen3_5MoeForConditionalGeneration(Seeing, Qwen3_5MoeForCausalLM):  # noqa: N801
    """As `Qwen3_5ForConditionalGeneration`."""

    TOWER = Qwen3_5VisionTower
    MODALITIES = (Modality.IMAGE, Modality.VIDEO)
    NUM_AXES = AXES
    WEIGHTS = seeing_rules(Qwen3_5MoeForCausalLM.WEIGHTS, Qwen3_5VisionTower.WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = TOKENS

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Qwen3NextConfig:
        section = language_section(reader, Qwen3_5MoeForCausalLM.IGNORED)
        return _seeing(reader, section, Qwen3_5MoeForCausalLM.read_config(section))


Config = TypeVar("Config", bound=DeltaHybridConfig)


def _seeing(reader: ConfigReader, section: ConfigReader, text: Config) -> Config:
    """The configuration of a language model with positions in axes and the tower beside it."""
    axes = read_axes(section, SECTIONS, interleaved=True)
    tower = Qwen3_5VisionTower.read_config(tower_section(reader, Qwen3_5VisionTower.IGNORED))
    return replace(text, rope=replace(text.rope, axes=axes), tower=tower)
