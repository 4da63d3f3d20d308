"""Pixtral: Mistral that sees pictures of any size, as LLaVA's files describe it (arXiv 2410.07073)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_section, tower_section
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.families.mistral import MistralForCausalLM
from jaxengine.device.models.shared.seeing import Seeing, seeing_rules
from jaxengine.device.models.towers.pixtral import PixtralTower

MISTRAL = {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32}
MISTRAL |= {"vocab_size": 32_000, "max_position_embeddings": 131_072}
"""What transformers documents of a Mistral of which its configuration does not say it."""


class PixtralLlavaForConditionalGeneration(Seeing, MistralForCausalLM):
    """A `Model`: `LlavaForConditionalGeneration` whose tower is Pixtral's."""

    TOWER = PixtralTower
    WEIGHTS = seeing_rules(MistralForCausalLM.WEIGHTS, PixtralTower.WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            ("image_token_index", "image_token_id", "image_seq_length", "ignore_index"),
            Ignored("read where prompts are taken in"),
        ),
        "vision_feature_layer": Ignored("the last layer of the tower is read", allowed=(-1,)),
        "vision_feature_select_strategy": Ignored("there is nothing that stands for the whole", allowed=("full",)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        section = language_section(reader, MistralForCausalLM.IGNORED, MISTRAL)
        section.choice("model_type", "mistral", ("mistral",))
        text = MistralForCausalLM.read_config(section)
        tower = PixtralTower.read_config(
            tower_section(reader, PixtralTower.IGNORED),
            out_size=text.hidden_size,
            merge=None,
            projector_activation=reader.choice("projector_hidden_act", "gelu", ACTIVATIONS),
            projector_bias=reader.optional("multimodal_projector_bias", True, bool),
        )
        return replace(text, tower=tower)
