"""Qwen3-VL with experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from jaxengine.contract.media import Modality
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_section, tower_section
from jaxengine.device.models.config.rope import AXES, read_axes
from jaxengine.device.models.families.qwen3_moe import Qwen3MoeConfig, Qwen3MoeForCausalLM
from jaxengine.device.models.shared.levels import SeeingLevels
from jaxengine.device.models.shared.seeing import seeing_rules
from jaxengine.device.models.towers.qwen_vl import Qwen3VisionTower
from jaxengine.device.weights.rules import Array, Rule, chain, part

SECTIONS = (24, 20, 20)
EXPERTS = "[model.]layers.*.mlp.experts"


def outer_first(tensor: Array, config: Any, shape: tuple[int, ...]) -> Array:
    """`[in, out]` of published checkpoints and `[out, in]` of those that transformers 5 saves become `[out, in]`."""
    experts = config.experts
    published = (experts.width, 2 * experts.inner), (experts.inner, experts.width)
    return tensor.T if tensor.shape in published else tensor


class Qwen3VLMoeForConditionalGeneration(SeeingLevels, Qwen3MoeForCausalLM):
    """A `Model`. A checkpoint has the experts of a layer in one tensor, `[experts, in, out]` or `[experts, out, in]`."""

    TOWER = Qwen3VisionTower
    MODALITIES = (Modality.IMAGE, Modality.VIDEO)
    NUM_AXES = AXES
    WEIGHTS = seeing_rules(
        (
            *(row for row in Qwen3MoeForCausalLM.WEIGHTS if "{expert}" not in row.source),
            Rule("layers.*.mlp.gate.weight", f"{EXPERTS}.gate_up_proj", chain(outer_first, part(0, 2)), each=True),
            Rule("layers.*.mlp.up.weight", f"{EXPERTS}.gate_up_proj", chain(outer_first, part(1, 2)), each=True),
            Rule("layers.*.mlp.down.weight", f"{EXPERTS}.down_proj", outer_first, each=True),
        ),
        Qwen3VisionTower.WEIGHTS,
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        f"{name}_token_id": Ignored("read where prompts are taken in")
        for name in ("image", "video", "vision_start", "vision_end")
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Qwen3MoeConfig:
        section = language_section(reader, Qwen3MoeForCausalLM.IGNORED, {"norm_topk_prob": True})
        text = Qwen3MoeForCausalLM.read_config(section)
        axes = read_axes(section, SECTIONS, interleaved=True)
        tower = Qwen3VisionTower.read_config(tower_section(reader, Qwen3VisionTower.IGNORED))
        return replace(text, rope=replace(text.rope, axes=axes), tower=tower)
