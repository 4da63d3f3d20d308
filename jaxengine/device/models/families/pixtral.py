"""Pixtral: Mistral that sees pictures of any size, as LLaVA's files describe it (arXiv 2410.07073)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.families.mistral import MistralForCausalLM
from jaxengine.device.models.shared.seeing import Seeing, language_and_tower, seeing_rules
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
        return language_and_tower(
            reader,
            MistralForCausalLM,
            PixtralTower,
            "mistral",
            defaults=MISTRAL,
            merge=None,
            projector_activation=reader.choice("projector_hidden_act", "gelu", ACTIVATIONS),
            projector_bias=reader.optional("multimodal_projector_bias", True, bool),
        )
