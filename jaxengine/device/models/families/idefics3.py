"""Idefics 3: Llama that sees tiles of pictures by SigLIP's tower, as SmolVLM after it (arXiv 2408.12637)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.models.families.smolvlm import SmolVLMForConditionalGeneration

LLAMA: dict[str, float] = {"hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32}
LLAMA |= {"num_attention_heads": 32, "vocab_size": 32_000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}


class Idefics3ForConditionalGeneration(SmolVLMForConditionalGeneration):
    """A `Model`."""

    LANGUAGE: ClassVar[Mapping[str, float] | None] = LLAMA
