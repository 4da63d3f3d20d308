"""Ministral 3, whose queries grow behind the trained context, and the language models of Mistral's checkpoints with pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.self_attention import AttentionShape, Temperature
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_section, tower_section
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.families.mistral import MistralForCausalLM
from jaxengine.device.models.shared.seeing import Seeing, seeing_rules
from jaxengine.device.models.towers.pixtral import PixtralTower
from jaxengine.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Ministral3Config(RotaryDecoderConfig):
    """`temperature` is that of queries; None of models that Ministral 3 came after."""

    temperature: Temperature | None = None


class Ministral3ForCausalLM(MistralForCausalLM):
    """A `Model`."""

    config: Ministral3Config

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Ministral3Config:
        temperature = _read_temperature(reader)
        shared = read_shared(reader, kv_heads=8, head_dim=128, epsilon=1e-5)
        return Ministral3Config(
            **shared,
            windows=(reader.nullable_size("sliding_window", None),) * shared["num_layers"],
            temperature=temperature,
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), temperature=self.config.temperature)


class Mistral3ForConditionalGeneration(Seeing, Ministral3ForCausalLM):
    """Mistral Small 3.1 and 3.2, Magistral and Ministral 3, which see by Pixtral's tower."""

    TOWER = PixtralTower
    WEIGHTS = seeing_rules(Ministral3ForCausalLM.WEIGHTS, PixtralTower.WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(("image_token_index", "image_token_id"), Ignored("read where prompts are taken in")),
        "vision_feature_layer": Ignored("the last layer of the tower is read", allowed=(-1,)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Ministral3Config:
        text = cls._read_text(language_section(reader, MistralForCausalLM.IGNORED))
        tower = PixtralTower.read_config(
            tower_section(reader, PixtralTower.IGNORED),
            out_size=text.hidden_size,
            merge=reader.optional_size("spatial_merge_size", 2),
            epsilon=text.rms_norm_eps,
            projector_activation=reader.choice("projector_hidden_act", "gelu", ACTIVATIONS),
            projector_bias=reader.optional("multimodal_projector_bias", False, bool),
        )
        return replace(text, tower=tower)

    @staticmethod
    def _read_text(section: ConfigReader) -> Ministral3Config:
        kind = section.choice("model_type", "mistral", ("mistral", "ministral3"))
        if kind == "ministral3":
            return Ministral3ForCausalLM.read_config(section)
        config = MistralForCausalLM.read_config(section)
        return Ministral3Config(**{field.name: getattr(config, field.name) for field in fields(config)})


def _read_temperature(reader: ConfigReader) -> Temperature:
    """Of the section about positions, which says too how long the trained context is."""
    section = reader.section("rope_parameters") or reader.section("rope_scaling")
    if section is None:
        raise ConfigError("config.json has no 'rope_parameters', which say how queries of Ministral 3 grow")
    section.raw("max_position_embeddings")  # the top of the file says it too
    return Temperature(
        floor=section.size("original_max_position_embeddings"),
        share=section.required("llama_4_scaling_beta", float),
        first=0,
    )
