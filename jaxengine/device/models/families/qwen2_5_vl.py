"""Qwen2.5-VL: Qwen2 whose positions have three axes, and which sees pictures and videos of any size (arXiv 2502.13923)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from jaxengine.contract.media import Modality
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import SECTION, language_section, tower_section
from jaxengine.device.models.config.rope import AXES, read_axes
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.families.qwen2 import Qwen2ForCausalLM
from jaxengine.device.models.shared.seeing import Seeing, seeing_rules
from jaxengine.device.models.towers.qwen_vl import Qwen2_5VisionTower

SECTIONS = (16, 24, 24)
TOKENS = ("image", "video", "vision_start", "vision_end", "vision")


class Qwen2_5_VLForConditionalGeneration(Seeing, Qwen2ForCausalLM):  # noqa: N801 - the architecture's name
    """A `Model`. Older files have the language model's keys at the top."""

    TOWER = Qwen2_5VisionTower
    MODALITIES = (Modality.IMAGE, Modality.VIDEO)
    NUM_AXES = AXES
    WEIGHTS = seeing_rules(Qwen2ForCausalLM.WEIGHTS, Qwen2_5VisionTower.WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **Qwen2ForCausalLM.IGNORED,
        **{f"{name}_token_id": Ignored("read where prompts are taken in") for name in TOKENS},
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        inside = reader.raw(SECTION) is not None
        section = language_section(reader, Qwen2ForCausalLM.IGNORED) if inside else reader
        text = Qwen2ForCausalLM.read_config(section)
        axes = read_axes(section, SECTIONS, interleaved=False)
        tower = Qwen2_5VisionTower.read_config(tower_section(reader, Qwen2_5VisionTower.IGNORED))
        return replace(text, rope=replace(text.rope, axes=axes), tower=tower)
