"""Ministral 3, whose queries grow behind the trained context, and the language models of Mistral's checkpoints with pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar

from jaxengine.device.layers.self_attention import AttentionShape, Temperature
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_rules, language_section
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.families.mistral import MistralForCausalLM
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


class Mistral3ForConditionalGeneration(Ministral3ForCausalLM):
    """Mistral Small 3.1 and 3.2, Magistral and Ministral 3, of which only text is asked."""

    WEIGHTS = language_rules(Ministral3ForCausalLM.WEIGHTS, ("vision_tower", "multi_modal_projector"))
    IGNORED: ClassVar[Mapping[str, Ignored]] = dict.fromkeys(
        (
            "vision_config",
            "image_token_index",
            "image_token_id",
            "projector_hidden_act",
            "multimodal_projector_bias",
            "spatial_merge_size",
            "vision_feature_layer",
        ),
        Ignored("pictures are refused"),
    )

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Ministral3Config:
        section = language_section(reader, MistralForCausalLM.IGNORED)
        kind = section.choice("model_type", "mistral", ("mistral", "ministral3"))
        if kind == "ministral3":
            return super().read_config(section)
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
