"""Qwen2-Audio: Qwen2 that hears by Whisper's encoder (arXiv 2407.10759)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from jaxengine.contract.media import Modality
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_section, tower_section
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.families.qwen2 import Qwen2ForCausalLM
from jaxengine.device.models.shared.seeing import Seeing, seeing_rules
from jaxengine.device.models.towers.whisper import Qwen2AudioTower, read_encoder

QWEN2 = {"hidden_size": 4096, "intermediate_size": 22_016, "num_hidden_layers": 32, "num_attention_heads": 32}
QWEN2 |= {"vocab_size": 151_936, "max_position_embeddings": 32_768}
"""What transformers documents of a Qwen2 of which its configuration does not say it."""


class Qwen2AudioForConditionalGeneration(Seeing, Qwen2ForCausalLM):
    """A `Model`."""

    TOWER = Qwen2AudioTower
    MODALITIES = (Modality.AUDIO,)
    WEIGHTS = seeing_rules(Qwen2ForCausalLM.WEIGHTS, Qwen2AudioTower.WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = dict.fromkeys(
        ("audio_token_index", "audio_token_id", "ignore_index"), Ignored("read where prompts are taken in")
    )

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        section = language_section(reader, Qwen2ForCausalLM.IGNORED, QWEN2)
        section.choice("model_type", "qwen2", ("qwen2",))
        text = Qwen2ForCausalLM.read_config(section)
        encoder = tower_section(reader, Qwen2AudioTower.IGNORED, key="audio_config")
        return replace(text, tower=read_encoder(encoder, out_size=text.hidden_size, merge=2))
