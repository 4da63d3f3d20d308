"""Qwen3-VL: Qwen3 whose positions have three axes, which sees pictures and videos at several depths (arXiv 2511.21631)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from jaxengine.contract.media import Modality
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_section, tower_section
from jaxengine.device.models.config.rope import AXES, read_axes
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.families.qwen3 import Qwen3ForCausalLM
from jaxengine.device.models.shared.levels import SeeingLevels
from jaxengine.device.models.shared.seeing import seeing_rules
from jaxengine.device.models.towers.qwen_vl import Qwen3VisionTower

SECTIONS = (24, 20, 20)
IGNORED = {
    f"{name}_token_id": Ignored("read where prompts are taken in")
    for name in ("image", "video", "vision_start", "vision_end")
}


class Qwen3VLForConditionalGeneration(SeeingLevels, Qwen3ForCausalLM):
    """A `Model`."""

    TOWER = Qwen3VisionTower
    MODALITIES = (Modality.IMAGE, Modality.VIDEO)
    NUM_AXES = AXES
    WEIGHTS = seeing_rules(Qwen3ForCausalLM.WEIGHTS, Qwen3VisionTower.WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = IGNORED

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        section = language_section(reader, Qwen3ForCausalLM.IGNORED)
        text = Qwen3ForCausalLM.read_config(section)
        axes = read_axes(section, SECTIONS, interleaved=True)
        tower = Qwen3VisionTower.read_config(tower_section(reader, Qwen3VisionTower.IGNORED))
        return replace(text, rope=replace(text.rope, axes=axes), tower=tower)
