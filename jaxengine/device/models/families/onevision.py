"""LLaVA-OneVision: Qwen2 that sees tiles of pictures, put together again with an end to each row (arXiv 2408.03326)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.families.qwen2 import Qwen2ForCausalLM
from jaxengine.device.models.shared.seeing import Seeing, language_and_tower, seeing_rules
from jaxengine.device.models.towers.onevision import OneVisionTower


class LlavaOnevisionForConditionalGeneration(Seeing, Qwen2ForCausalLM):
    """A `Model`."""

    TOWER = OneVisionTower
    WEIGHTS = seeing_rules(Qwen2ForCausalLM.WEIGHTS, OneVisionTower.WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            (
                *("image_token_index", "image_token_id", "video_token_index", "video_token_id"),
                *("image_grid_pinpoints", "vision_aspect_ratio", "ignore_index", "use_image_newline_parameter"),
            ),
            Ignored("read where prompts are taken in"),
        ),
        "vision_feature_select_strategy": Ignored("there is nothing that stands for the whole", allowed=("full",)),
        "multimodal_projector_bias": Ignored("the projector has biases", allowed=(True,)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        return language_and_tower(
            reader,
            Qwen2ForCausalLM,
            OneVisionTower,
            "qwen2",
            layer=reader.optional("vision_feature_layer", -1, int),
            projector_activation=reader.choice("projector_hidden_act", "gelu", ACTIVATIONS),
        )
