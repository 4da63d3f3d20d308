"""Voxtral: Llama that hears by Whisper's encoder, half a minute after the other (arXiv 2507.13264)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from jaxengine.contract.media import Modality
from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_section, tower_section
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.families.llama import LlamaForCausalLM
from jaxengine.device.models.shared.seeing import Seeing, seeing_rules
from jaxengine.device.models.towers.whisper import VoxtralTower, read_encoder

LLAMA: dict[str, float] = {
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
}
LLAMA |= {"num_key_value_heads": 8, "vocab_size": 131_072, "max_position_embeddings": 131_072, "head_dim": 128}
LLAMA |= {"rms_norm_eps": 1e-5, "rope_theta": 100_000_000.0}
"""What transformers documents of the Llama in it."""
MERGED = 4
"""Places of an embedding."""


class VoxtralForConditionalGeneration(Seeing, LlamaForCausalLM):
    """A `Model`."""

    TOWER = VoxtralTower
    MODALITIES = (Modality.AUDIO,)
    WEIGHTS = seeing_rules(LlamaForCausalLM.WEIGHTS, VoxtralTower.WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "audio_token_id": Ignored("read where prompts are taken in"),
        "hidden_size": Ignored("that of the Llama in it"),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        section = language_section(reader, LlamaForCausalLM.IGNORED, LLAMA)
        section.choice("model_type", "llama", ("llama",))
        text = LlamaForCausalLM.read_config(section)
        ignored = {**VoxtralTower.IGNORED, "vocab_size": Ignored("of Whisper's texts")}
        encoder = read_encoder(
            tower_section(reader, ignored, key="audio_config"), out_size=text.hidden_size, merge=MERGED
        )
        activation = reader.choice("projector_hidden_act", "gelu", ACTIVATIONS)
        return replace(text, tower=replace(encoder, projector_activation=activation))
