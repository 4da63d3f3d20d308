"""LLaVA-1.5: Llama that sees by CLIP's tower (arXiv 2310.03744)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.families.llama import LlamaForCausalLM
from jaxengine.device.models.shared.seeing import Seeing, language_and_tower, seeing_rules
from jaxengine.device.models.towers.clip import ClipTower

LLAMA = {"hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32}
LLAMA |= {"vocab_size": 32_000, "max_position_embeddings": 2048}
"""What transformers documents of a Llama of which its configuration does not say it, as those of LLaVA do not."""


class LlavaForConditionalGeneration(Seeing, LlamaForCausalLM):
    """A `Model`."""

    TOWER = ClipTower
    WEIGHTS = seeing_rules(LlamaForCausalLM.WEIGHTS, ClipTower.WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            ("image_token_index", "image_token_id", "image_seq_length", "ignore_index"),
            Ignored("read where prompts are taken in"),
        ),
        "vision_feature_select_strategy": Ignored("what stands for the whole is left out", allowed=("default",)),
        "multimodal_projector_bias": Ignored("the projector has biases", allowed=(True,)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        return language_and_tower(
            reader,
            LlamaForCausalLM,
            ClipTower,
            "llama",
            defaults=LLAMA,
            layer=reader.optional("vision_feature_layer", -2, int),
            projector_activation=reader.choice("projector_hidden_act", "gelu", ACTIVATIONS),
        )
