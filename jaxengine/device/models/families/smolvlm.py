"""SmolVLM: Llama that sees tiles of pictures by SigLIP's tower (arXiv 2504.05299)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.families.llama import LlamaForCausalLM
from jaxengine.device.models.shared.seeing import Seeing, language_and_tower, seeing_rules
from jaxengine.device.models.towers.siglip import SmolVlmTower
from jaxengine.device.weights.rules import renamed

OLDER: Mapping[str, Ignored] = {
    **dict.fromkeys(
        ("_flash_attn_2_enabled", "neftune_noise_alpha", "perceiver_config", "pixel_shuffle_factor", "is_llama_config"),
        Ignored("of what trained it, or said elsewhere"),
    ),
    **dict.fromkeys(
        ("qk_layer_norms", "rope_interleaved", "use_resampler"), Ignored("not of this Llama", allowed=(False,))
    ),
}
"""Keys of older files beside Llama's."""
VISION: Mapping[str, Ignored] = {
    **dict.fromkeys(("max_image_size", "size"), Ignored("the processor's")),
    **dict.fromkeys(("tie_word_embeddings", "use_base_siglip"), Ignored("said of the whole")),
}
"""The same beside the tower's."""


class SmolVLMForConditionalGeneration(Seeing, LlamaForCausalLM):
    """A `Model`."""

    TOWER = SmolVlmTower
    WEIGHTS = renamed(
        seeing_rules(LlamaForCausalLM.WEIGHTS, SmolVlmTower.WEIGHTS), {"[language_model.]": "[text_model.]"}
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = dict.fromkeys(
        ("image_token_id", "image_seq_len", "_pad_token_id"), Ignored("read where prompts are taken in")
    )
    LANGUAGE: ClassVar[Mapping[str, float] | None] = None
    """What transformers documents of the Llama in it, where its configuration does not say it."""

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        return language_and_tower(
            reader,
            LlamaForCausalLM,
            SmolVlmTower,
            "llama",
            defaults=cls.LANGUAGE,
            beside=(OLDER, VISION),
            merge=reader.optional_size("scale_factor", 2),
        )
