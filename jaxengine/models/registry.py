"""Which class runs an architecture. One row per architecture; the module is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from jaxengine.errors import ConfigError, nearest
from jaxengine.models.interface import CausalLM

ARCHITECTURES: Mapping[str, str] = {
    "BloomForCausalLM": "jaxengine.models.bloom:BloomForCausalLM",
    "Cohere2ForCausalLM": "jaxengine.models.cohere:Cohere2ForCausalLM",
    "CohereForCausalLM": "jaxengine.models.cohere:CohereForCausalLM",
    "DeepseekV2ForCausalLM": "jaxengine.models.deepseek:DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM": "jaxengine.models.deepseek:DeepseekV3ForCausalLM",
    "Ernie4_5ForCausalLM": "jaxengine.models.ernie4_5:Ernie4_5ForCausalLM",
    "Ernie4_5_MoeForCausalLM": "jaxengine.models.ernie4_5_moe:Ernie4_5_MoeForCausalLM",
    "Exaone4ForCausalLM": "jaxengine.models.exaone4:Exaone4ForCausalLM",
    "FalconForCausalLM": "jaxengine.models.falcon:FalconForCausalLM",
    "Gemma2ForCausalLM": "jaxengine.models.gemma:Gemma2ForCausalLM",
    "Gemma3ForCausalLM": "jaxengine.models.gemma3:Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration": "jaxengine.models.gemma3:Gemma3ForConditionalGeneration",
    "Gemma4ForCausalLM": "jaxengine.models.gemma4:Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration": "jaxengine.models.gemma4:Gemma4ForConditionalGeneration",
    "GemmaForCausalLM": "jaxengine.models.gemma:GemmaForCausalLM",
    "Glm4ForCausalLM": "jaxengine.models.glm4:Glm4ForCausalLM",
    "Glm4MoeForCausalLM": "jaxengine.models.glm4_moe:Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM": "jaxengine.models.deepseek:Glm4MoeLiteForCausalLM",
    "GlmForCausalLM": "jaxengine.models.glm4:GlmForCausalLM",
    "GPT2LMHeadModel": "jaxengine.models.gpt2:GPT2LMHeadModel",
    "GPTBigCodeForCausalLM": "jaxengine.models.gpt2:GPTBigCodeForCausalLM",
    "GPTJForCausalLM": "jaxengine.models.phi:GPTJForCausalLM",
    "GptOssForCausalLM": "jaxengine.models.gpt_oss:GptOssForCausalLM",
    "GPTNeoXForCausalLM": "jaxengine.models.gpt_neox:GPTNeoXForCausalLM",
    "GraniteForCausalLM": "jaxengine.models.granite:GraniteForCausalLM",
    "GraniteMoeForCausalLM": "jaxengine.models.granite_moe:GraniteMoeForCausalLM",
    "GraniteMoeHybridForCausalLM": "jaxengine.models.granite_hybrid:GraniteMoeHybridForCausalLM",
    "KimiLinearForCausalLM": "jaxengine.models.kimi_linear:KimiLinearForCausalLM",
    "Lfm2ForCausalLM": "jaxengine.models.lfm2:Lfm2ForCausalLM",
    "Llama4ForCausalLM": "jaxengine.models.llama4:Llama4ForCausalLM",
    "Llama4ForConditionalGeneration": "jaxengine.models.llama4:Llama4ForConditionalGeneration",
    "LlamaForCausalLM": "jaxengine.models.llama:LlamaForCausalLM",
    "Mamba2ForCausalLM": "jaxengine.models.mamba2:Mamba2ForCausalLM",
    "MiniMaxM2ForCausalLM": "jaxengine.models.minimax_m2:MiniMaxM2ForCausalLM",
    "Ministral3ForCausalLM": "jaxengine.models.ministral3:Ministral3ForCausalLM",
    "Mistral3ForConditionalGeneration": "jaxengine.models.ministral3:Mistral3ForConditionalGeneration",
    "MistralForCausalLM": "jaxengine.models.mistral:MistralForCausalLM",
    "MixtralForCausalLM": "jaxengine.models.mixtral:MixtralForCausalLM",
    "MptForCausalLM": "jaxengine.models.mpt:MptForCausalLM",
    "NemotronHForCausalLM": "jaxengine.models.nemotron_h:NemotronHForCausalLM",
    "Olmo2ForCausalLM": "jaxengine.models.olmo2:Olmo2ForCausalLM",
    "Olmo3ForCausalLM": "jaxengine.models.olmo3:Olmo3ForCausalLM",
    "OlmoeForCausalLM": "jaxengine.models.olmoe:OlmoeForCausalLM",
    "OPTForCausalLM": "jaxengine.models.opt:OPTForCausalLM",
    "Phi3ForCausalLM": "jaxengine.models.phi3:Phi3ForCausalLM",
    "PhiForCausalLM": "jaxengine.models.phi:PhiForCausalLM",
    "PhimoeForCausalLM": "jaxengine.models.phimoe:PhimoeForCausalLM",
    "PhiMoEForCausalLM": "jaxengine.models.phimoe:PhiMoEForCausalLM",
    "Qwen2ForCausalLM": "jaxengine.models.qwen2:Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM": "jaxengine.models.qwen2_moe:Qwen2MoeForCausalLM",
    "Qwen3_5ForCausalLM": "jaxengine.models.qwen3_5:Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "jaxengine.models.qwen3_5:Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM": "jaxengine.models.qwen3_5:Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "jaxengine.models.qwen3_5:Qwen3_5MoeForConditionalGeneration",
    "Qwen3ForCausalLM": "jaxengine.models.qwen3:Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM": "jaxengine.models.qwen3_moe:Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM": "jaxengine.models.qwen3_next:Qwen3NextForCausalLM",
    "SeedOssForCausalLM": "jaxengine.models.seed_oss:SeedOssForCausalLM",
    "SmolLM3ForCausalLM": "jaxengine.models.smollm3:SmolLM3ForCausalLM",
    "StableLmForCausalLM": "jaxengine.models.stablelm:StableLmForCausalLM",
    "Starcoder2ForCausalLM": "jaxengine.models.starcoder2:Starcoder2ForCausalLM",
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


def resolve(config: Mapping[str, Any]) -> type[CausalLM]:
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
            model_class: type[CausalLM] = getattr(importlib.import_module(module), class_name)
            return model_class
    asked = ", ".join(map(repr, architectures))
    hint = nearest(str(architectures[0]), ARCHITECTURES)
    raise ConfigError(f"no model is built for architecture {asked}. Known are {', '.join(ARCHITECTURES)}.{hint}")


def has_head(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` describes a model that can continue texts, going by its architecture's name."""
    return not any(name in WITHOUT_HEAD for name in config.get("architectures") or ())
