"""Which class runs an architecture. One row per architecture; the module is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader, apply_overrides
from jaxengine.device.models.config.ignored import COMMON_IGNORED
from jaxengine.device.models.interface import Model
from jaxengine.errors import ConfigError, nearest

ARCHITECTURES: Mapping[str, str] = {
    "ArceeForCausalLM": "jaxengine.device.models.families.arcee:ArceeForCausalLM",
    "BloomForCausalLM": "jaxengine.device.models.families.bloom:BloomForCausalLM",
    "Cohere2ForCausalLM": "jaxengine.device.models.families.cohere:Cohere2ForCausalLM",
    "CohereForCausalLM": "jaxengine.device.models.families.cohere:CohereForCausalLM",
    "DeepseekV2ForCausalLM": "jaxengine.device.models.families.deepseek:DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM": "jaxengine.device.models.families.deepseek:DeepseekV3ForCausalLM",
    "Dots1ForCausalLM": "jaxengine.device.models.families.dots1:Dots1ForCausalLM",
    "Ernie4_5ForCausalLM": "jaxengine.device.models.families.ernie4_5:Ernie4_5ForCausalLM",
    "Ernie4_5_MoeForCausalLM": "jaxengine.device.models.families.ernie4_5_moe:Ernie4_5_MoeForCausalLM",
    "Exaone4ForCausalLM": "jaxengine.device.models.families.exaone4:Exaone4ForCausalLM",
    "FalconForCausalLM": "jaxengine.device.models.families.falcon:FalconForCausalLM",
    "Gemma2ForCausalLM": "jaxengine.device.models.families.gemma:Gemma2ForCausalLM",
    "Gemma3ForCausalLM": "jaxengine.device.models.families.gemma3:Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration": "jaxengine.device.models.families.gemma3:Gemma3ForConditionalGeneration",
    "Gemma4ForCausalLM": "jaxengine.device.models.families.gemma4.model:Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration": "jaxengine.device.models.families.gemma4.model:Gemma4ForConditionalGeneration",
    "GemmaForCausalLM": "jaxengine.device.models.families.gemma:GemmaForCausalLM",
    "Glm4ForCausalLM": "jaxengine.device.models.families.glm4:Glm4ForCausalLM",
    "Glm4MoeForCausalLM": "jaxengine.device.models.families.glm4_moe:Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM": "jaxengine.device.models.families.deepseek:Glm4MoeLiteForCausalLM",
    "GlmForCausalLM": "jaxengine.device.models.families.glm4:GlmForCausalLM",
    "GPT2LMHeadModel": "jaxengine.device.models.families.gpt2:GPT2LMHeadModel",
    "GPTBigCodeForCausalLM": "jaxengine.device.models.families.gpt2:GPTBigCodeForCausalLM",
    "GPTJForCausalLM": "jaxengine.device.models.families.phi:GPTJForCausalLM",
    "GptOssForCausalLM": "jaxengine.device.models.families.gpt_oss:GptOssForCausalLM",
    "GPTNeoXForCausalLM": "jaxengine.device.models.families.gpt_neox:GPTNeoXForCausalLM",
    "GraniteForCausalLM": "jaxengine.device.models.families.granite:GraniteForCausalLM",
    "GraniteMoeForCausalLM": "jaxengine.device.models.families.granite_moe:GraniteMoeForCausalLM",
    "GraniteMoeHybridForCausalLM": "jaxengine.device.models.families.granite_hybrid:GraniteMoeHybridForCausalLM",
    "KimiLinearForCausalLM": "jaxengine.device.models.families.kimi_linear:KimiLinearForCausalLM",
    "Lfm2ForCausalLM": "jaxengine.device.models.families.lfm2:Lfm2ForCausalLM",
    "Llama4ForCausalLM": "jaxengine.device.models.families.llama4:Llama4ForCausalLM",
    "Llama4ForConditionalGeneration": "jaxengine.device.models.families.llama4:Llama4ForConditionalGeneration",
    "LlamaForCausalLM": "jaxengine.device.models.families.llama:LlamaForCausalLM",
    "Mamba2ForCausalLM": "jaxengine.device.models.families.mamba2:Mamba2ForCausalLM",
    "MiniMaxM2ForCausalLM": "jaxengine.device.models.families.minimax_m2:MiniMaxM2ForCausalLM",
    "Ministral3ForCausalLM": "jaxengine.device.models.families.ministral3:Ministral3ForCausalLM",
    "Mistral3ForConditionalGeneration": "jaxengine.device.models.families.ministral3:Mistral3ForConditionalGeneration",
    "MistralForCausalLM": "jaxengine.device.models.families.mistral:MistralForCausalLM",
    "MixtralForCausalLM": "jaxengine.device.models.families.mixtral:MixtralForCausalLM",
    "MptForCausalLM": "jaxengine.device.models.families.mpt:MptForCausalLM",
    "NemotronHForCausalLM": "jaxengine.device.models.families.nemotron_h:NemotronHForCausalLM",
    "Olmo2ForCausalLM": "jaxengine.device.models.families.olmo2:Olmo2ForCausalLM",
    "Olmo3ForCausalLM": "jaxengine.device.models.families.olmo3:Olmo3ForCausalLM",
    "OlmoeForCausalLM": "jaxengine.device.models.families.olmoe:OlmoeForCausalLM",
    "OPTForCausalLM": "jaxengine.device.models.families.opt:OPTForCausalLM",
    "Phi3ForCausalLM": "jaxengine.device.models.families.phi3:Phi3ForCausalLM",
    "PhiForCausalLM": "jaxengine.device.models.families.phi:PhiForCausalLM",
    "PhimoeForCausalLM": "jaxengine.device.models.families.phimoe:PhimoeForCausalLM",
    "PhiMoEForCausalLM": "jaxengine.device.models.families.phimoe:PhiMoEForCausalLM",
    "Qwen2ForCausalLM": "jaxengine.device.models.families.qwen2:Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM": "jaxengine.device.models.families.qwen2_moe:Qwen2MoeForCausalLM",
    "Qwen3_5ForCausalLM": "jaxengine.device.models.families.qwen3_5:Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "jaxengine.device.models.families.qwen3_5:Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM": "jaxengine.device.models.families.qwen3_5:Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "jaxengine.device.models.families.qwen3_5:Qwen3_5MoeForConditionalGeneration",
    "Qwen3ForCausalLM": "jaxengine.device.models.families.qwen3:Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM": "jaxengine.device.models.families.qwen3_moe:Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM": "jaxengine.device.models.families.qwen3_next:Qwen3NextForCausalLM",
    "SeedOssForCausalLM": "jaxengine.device.models.families.seed_oss:SeedOssForCausalLM",
    "SmolLM3ForCausalLM": "jaxengine.device.models.families.smollm3:SmolLM3ForCausalLM",
    "StableLmForCausalLM": "jaxengine.device.models.families.stablelm:StableLmForCausalLM",
    "Starcoder2ForCausalLM": "jaxengine.device.models.families.starcoder2:Starcoder2ForCausalLM",
}

WITHOUT_HEAD: Mapping[str, str] = {
    "Gemma3TextModel": "Gemma3ForCausalLM",
    "GPT2Model": "GPT2LMHeadModel",
    "LlamaModel": "LlamaForCausalLM",
    "MistralModel": "MistralForCausalLM",
    "Qwen2Model": "Qwen2ForCausalLM",
    "Qwen3Model": "Qwen3ForCausalLM",
    "Qwen3MoeModel": "Qwen3MoeForCausalLM",
}
"""Names under which embedding models are saved, and whose layers they have."""


def resolve(config: Mapping[str, Any]) -> type[Model]:
    """The model class for the contents of a `config.json`.

    Raises:
        ConfigError: `architectures` is missing, empty or names nothing that is built; the message lists what is.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ConfigError(
            "config.json must name the model's class in 'architectures', a list of one name; "
            f"got {architectures!r}. Known are {', '.join(ARCHITECTURES)}. "
            "Set it with hf_overrides={'architectures': [...]} if the file is incomplete."
        )
    for name in architectures:
        architecture = WITHOUT_HEAD.get(name, name)
        if architecture in ARCHITECTURES:
            module, _, class_name = ARCHITECTURES[architecture].partition(":")
            model_class: type[Model] = getattr(importlib.import_module(module), class_name)
            return model_class
    asked = ", ".join(map(repr, architectures))
    hint = nearest(str(architectures[0]), ARCHITECTURES)
    raise ConfigError(f"no model is built for architecture {asked}. Known are {', '.join(ARCHITECTURES)}.{hint}")


def read_config(
    model_class: type[Model],
    config: Mapping[str, Any],
    *,
    overrides: Mapping[str, Any] | None = None,
) -> DecoderConfig:
    """The family's own frozen configuration from the contents of a `config.json`.

    Args:
        model_class: what `resolve` returned.
        config: the JSON object.
        overrides: `hf_overrides`, merged in before anything is read.

    Raises:
        ConfigError: missing, unknown, mistyped or unsupported keys.
    """
    reader = ConfigReader(apply_overrides(config, overrides or {}))
    result = model_class.read_config(reader)
    reader.finish({**COMMON_IGNORED, **model_class.IGNORED}, family=model_class.__name__)
    return result


def has_head(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` describes a model that can continue texts, going by its architecture's name."""
    return not any(name in WITHOUT_HEAD for name in config.get("architectures") or ())
