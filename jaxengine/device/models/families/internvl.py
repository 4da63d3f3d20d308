"""InternVL 3: Qwen2 that sees tiles of pictures (arXiv 2504.10479)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.families.qwen2 import Qwen2ForCausalLM
from jaxengine.device.models.shared.seeing import Seeing, language_and_tower, seeing_rules
from jaxengine.device.models.towers.internvl import InternVlTower


class InternVLForConditionalGeneration(Seeing, Qwen2ForCausalLM):
    """A `Model`."""

    TOWER = InternVlTower
    WEIGHTS = seeing_rules(Qwen2ForCausalLM.WEIGHTS, InternVlTower.WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(("image_token_id", "image_seq_length"), Ignored("read where prompts are taken in")),
        "vision_feature_layer": Ignored("the last layer of the tower is read", allowed=(-1,)),
        "vision_feature_select_strategy": Ignored("what stands for the whole is left out", allowed=("default",)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        return language_and_tower(
            reader,
            Qwen2ForCausalLM,
            InternVlTower,
            "qwen2",
            merge=round(1 / reader.optional("downsample_ratio", 0.5, float)),
            projector_activation=reader.choice("projector_hidden_act", "gelu", ACTIVATIONS),
        )
