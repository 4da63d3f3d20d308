"""Which class runs an architecture. One row per architecture; the module is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader, apply_overrides
from jaxengine.device.models.config.ignored import COMMON_IGNORED
from jaxengine.device.models.interface import Model, Purpose
from jaxengine.errors import ConfigError, nearest

ARCHITECTURES: Mapping[str, str] = {
    "ApertusForCausalLM": "jaxengine.device.models.families.apertus:ApertusForCausalLM",
    "ArceeForCausalLM": "jaxengine.device.models.families.arcee:ArceeForCausalLM",
    "BambaForCausalLM": "jaxengine.device.models.families.bamba:BambaForCausalLM",
    "BloomForCausalLM": "jaxengine.device.models.families.bloom:BloomForCausalLM",
    "Cohere2ForCausalLM": "jaxengine.device.models.families.cohere:Cohere2ForCausalLM",
    "CohereForCausalLM": "jaxengine.device.models.families.cohere:CohereForCausalLM",
    "DeepseekV2ForCausalLM": "jaxengine.device.models.families.deepseek:DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM": "jaxengine.device.models.families.deepseek:DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM": "jaxengine.device.models.families.deepseek_sparse:DeepseekV32ForCausalLM",
    "Dots1ForCausalLM": "jaxengine.device.models.families.dots1:Dots1ForCausalLM",
    "Ernie4_5_MoeForCausalLM": "jaxengine.device.models.families.ernie4_5_moe:Ernie4_5_MoeForCausalLM",
    "Ernie4_5ForCausalLM": "jaxengine.device.models.families.ernie4_5:Ernie4_5ForCausalLM",
    "Exaone4ForCausalLM": "jaxengine.device.models.families.exaone4:Exaone4ForCausalLM",
    "FalconForCausalLM": "jaxengine.device.models.families.falcon:FalconForCausalLM",
    "FalconMambaForCausalLM": "jaxengine.device.models.families.mamba:FalconMambaForCausalLM",
    "FalconH1ForCausalLM": "jaxengine.device.models.families.falcon_h1:FalconH1ForCausalLM",
    "FlexOlmoForCausalLM": "jaxengine.device.models.families.flex_olmo:FlexOlmoForCausalLM",
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
    "GlmMoeDsaForCausalLM": "jaxengine.device.models.families.deepseek_sparse:GlmMoeDsaForCausalLM",
    "GPT2LMHeadModel": "jaxengine.device.models.families.gpt2:GPT2LMHeadModel",
    "GPTBigCodeForCausalLM": "jaxengine.device.models.families.gpt2:GPTBigCodeForCausalLM",
    "GPTJForCausalLM": "jaxengine.device.models.families.phi:GPTJForCausalLM",
    "GPTNeoForCausalLM": "jaxengine.device.models.families.gpt_neo:GPTNeoForCausalLM",
    "GPTNeoXForCausalLM": "jaxengine.device.models.families.gpt_neox:GPTNeoXForCausalLM",
    "GptOssForCausalLM": "jaxengine.device.models.families.gpt_oss:GptOssForCausalLM",
    "GraniteForCausalLM": "jaxengine.device.models.families.granite:GraniteForCausalLM",
    "GraniteMoeForCausalLM": "jaxengine.device.models.families.granite_moe:GraniteMoeForCausalLM",
    "GraniteMoeHybridForCausalLM": "jaxengine.device.models.families.granite_hybrid:GraniteMoeHybridForCausalLM",
    "HunYuanDenseV1ForCausalLM": "jaxengine.device.models.families.hunyuan:HunYuanDenseV1ForCausalLM",
    "HunYuanMoEV1ForCausalLM": "jaxengine.device.models.families.hunyuan:HunYuanMoEV1ForCausalLM",
    "Idefics3ForConditionalGeneration": "jaxengine.device.models.families.idefics3:Idefics3ForConditionalGeneration",
    "InternLM3ForCausalLM": "jaxengine.device.models.families.internlm3:InternLM3ForCausalLM",
    "InternVLForConditionalGeneration": "jaxengine.device.models.families.internvl:InternVLForConditionalGeneration",
    "JambaForCausalLM": "jaxengine.device.models.families.jamba:JambaForCausalLM",
    "Kimi_K25ForConditionalGeneration": "jaxengine.device.models.families.deepseek:Kimi_K25ForConditionalGeneration",
    "KimiK25ForConditionalGeneration": "jaxengine.device.models.families.deepseek:KimiK25ForConditionalGeneration",
    "KimiLinearForCausalLM": "jaxengine.device.models.families.kimi_linear:KimiLinearForCausalLM",
    "Lfm2ForCausalLM": "jaxengine.device.models.families.lfm2:Lfm2ForCausalLM",
    "Lfm2MoeForCausalLM": "jaxengine.device.models.families.lfm2_moe:Lfm2MoeForCausalLM",
    "Llama4ForCausalLM": "jaxengine.device.models.families.llama4:Llama4ForCausalLM",
    "Llama4ForConditionalGeneration": "jaxengine.device.models.families.llama4:Llama4ForConditionalGeneration",
    "LlamaForCausalLM": "jaxengine.device.models.families.llama:LlamaForCausalLM",
    "LlavaForConditionalGeneration": "jaxengine.device.models.families.llava:LlavaForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration": "jaxengine.device.models.families.onevision:LlavaOnevisionForConditionalGeneration",
    "MambaForCausalLM": "jaxengine.device.models.families.mamba:MambaForCausalLM",
    "Mamba2ForCausalLM": "jaxengine.device.models.families.mamba2:Mamba2ForCausalLM",
    "MiMoForCausalLM": "jaxengine.device.models.families.mimo:MiMoForCausalLM",
    "MiMoV2FlashForCausalLM": "jaxengine.device.models.families.mimo_v2:MiMoV2FlashForCausalLM",
    "MiniMaxM2ForCausalLM": "jaxengine.device.models.families.minimax_m2:MiniMaxM2ForCausalLM",
    "Ministral3ForCausalLM": "jaxengine.device.models.families.ministral3:Ministral3ForCausalLM",
    "Mistral3ForConditionalGeneration": "jaxengine.device.models.families.ministral3:Mistral3ForConditionalGeneration",
    "MistralForCausalLM": "jaxengine.device.models.families.mistral:MistralForCausalLM",
    "MixtralForCausalLM": "jaxengine.device.models.families.mixtral:MixtralForCausalLM",
    "MptForCausalLM": "jaxengine.device.models.families.mpt:MptForCausalLM",
    "NemotronForCausalLM": "jaxengine.device.models.families.nemotron:NemotronForCausalLM",
    "NemotronHForCausalLM": "jaxengine.device.models.families.nemotron_h:NemotronHForCausalLM",
    "OlmoForCausalLM": "jaxengine.device.models.families.olmo:OlmoForCausalLM",
    "Olmo2ForCausalLM": "jaxengine.device.models.families.olmo2:Olmo2ForCausalLM",
    "Olmo3ForCausalLM": "jaxengine.device.models.families.olmo3:Olmo3ForCausalLM",
    "OlmoeForCausalLM": "jaxengine.device.models.families.olmoe:OlmoeForCausalLM",
    "OPTForCausalLM": "jaxengine.device.models.families.opt:OPTForCausalLM",
    "Phi3ForCausalLM": "jaxengine.device.models.families.phi3:Phi3ForCausalLM",
    "PhiForCausalLM": "jaxengine.device.models.families.phi:PhiForCausalLM",
    "PhimoeForCausalLM": "jaxengine.device.models.families.phimoe:PhimoeForCausalLM",
    "PhiMoEForCausalLM": "jaxengine.device.models.families.phimoe:PhiMoEForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "jaxengine.device.models.families.qwen2_5_vl:Qwen2_5_VLForConditionalGeneration",
    "Qwen2AudioForConditionalGeneration": "jaxengine.device.models.families.qwen2_audio:Qwen2AudioForConditionalGeneration",
    "Qwen2ForCausalLM": "jaxengine.device.models.families.qwen2:Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM": "jaxengine.device.models.families.qwen2_moe:Qwen2MoeForCausalLM",
    "Qwen3_5ForCausalLM": "jaxengine.device.models.families.qwen3_5:Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "jaxengine.device.models.families.qwen3_5:Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM": "jaxengine.device.models.families.qwen3_5:Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "jaxengine.device.models.families.qwen3_5:Qwen3_5MoeForConditionalGeneration",
    "Qwen3ForCausalLM": "jaxengine.device.models.families.qwen3:Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM": "jaxengine.device.models.families.qwen3_moe:Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM": "jaxengine.device.models.families.qwen3_next:Qwen3NextForCausalLM",
    "Qwen3VLForConditionalGeneration": "jaxengine.device.models.families.qwen3_vl:Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration": "jaxengine.device.models.families.qwen3_vl_moe:Qwen3VLMoeForConditionalGeneration",
    "RWKV7ForCausalLM": "jaxengine.device.models.families.rwkv7:RWKV7ForCausalLM",
    "SeedOssForCausalLM": "jaxengine.device.models.families.seed_oss:SeedOssForCausalLM",
    "SmolLM3ForCausalLM": "jaxengine.device.models.families.smollm3:SmolLM3ForCausalLM",
    "SmolVLMForConditionalGeneration": "jaxengine.device.models.families.smolvlm:SmolVLMForConditionalGeneration",
    "StableLmForCausalLM": "jaxengine.device.models.families.stablelm:StableLmForCausalLM",
    "Starcoder2ForCausalLM": "jaxengine.device.models.families.starcoder2:Starcoder2ForCausalLM",
    "Step3p5ForCausalLM": "jaxengine.device.models.families.step3p5:Step3p5ForCausalLM",
    "Step3p7ForConditionalGeneration": "jaxengine.device.models.families.step3p5:Step3p7ForConditionalGeneration",
    "VoxtralForConditionalGeneration": "jaxengine.device.models.families.voxtral:VoxtralForConditionalGeneration",
    "WhisperForConditionalGeneration": "jaxengine.device.models.families.whisper:WhisperForConditionalGeneration",
}

BY_TOWER: Mapping[str, str] = {
    "LlavaForConditionalGeneration/pixtral": "jaxengine.device.models.families.pixtral:PixtralLlavaForConditionalGeneration",
}
"""The same of an architecture and the kind of its tower, where that decides."""

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

ENCODERS: Mapping[str, str] = {
    "AlbertModel": "jaxengine.device.models.families.albert:AlbertModel",
    "BertModel": "jaxengine.device.models.families.bert:BertModel",
    "BgeM3EmbeddingModel": "jaxengine.device.models.families.bert:BgeM3EmbeddingModel",
    "CamembertModel": "jaxengine.device.models.families.bert:RobertaModel",
    "ColBERTModernBertModel": "jaxengine.device.models.families.modernbert:ColbertModernBertModel",
    "DebertaV2Model": "jaxengine.device.models.families.deberta_v2:DebertaV2Model",
    "DistilBertModel": "jaxengine.device.models.families.distilbert:DistilBertModel",
    "ElectraModel": "jaxengine.device.models.families.electra:ElectraModel",
    "EuroBertModel": "jaxengine.device.models.families.eurobert:EuroBertModel",
    "GteModel": "jaxengine.device.models.families.gte:GteModel",
    "HF_ColBERT": "jaxengine.device.models.families.bert:ColbertModel",
    "JinaEmbeddingsV3Model": "jaxengine.device.models.families.jina_v3:JinaEmbeddingsV3Model",
    "JinaRobertaModel": "jaxengine.device.models.families.jina_v3:JinaRobertaModel",
    "LlamaBidirectionalModel": "jaxengine.device.models.families.llama:LlamaBidirectionalModel",
    "MPNetModel": "jaxengine.device.models.families.mpnet:MPNetModel",
    "ModernBertModel": "jaxengine.device.models.families.modernbert:ModernBertModel",
    "NewModel": "jaxengine.device.models.families.gte:GteModel",
    "NomicBertModel": "jaxengine.device.models.families.nomic_bert:NomicBertModel",
    "RobertaModel": "jaxengine.device.models.families.bert:RobertaModel",
    "XLMRobertaModel": "jaxengine.device.models.families.bert:RobertaModel",
}
"""The same of models that generate nothing."""

LISTED: Mapping[str, str] = {**ARCHITECTURES, **ENCODERS}

HEADS: Mapping[str, Purpose] = {
    "ForMaskedLM": Purpose.EMBED,
    "ForSequenceClassification": Purpose.CLASSIFY,
    "ForTokenClassification": Purpose.CLASSIFY_TOKENS,
    "ForRewardModel": Purpose.REWARD,
    "ForProcessRewardModel": Purpose.PROCESS_REWARD,
}
"""How names of models end that have another head than the one they are listed with."""
LISTED_ENDS = ("ForCausalLM", "LMHeadModel", "Model")


def resolve(config: Mapping[str, Any]) -> type[Model]:
    """The model class for the contents of a `config.json`.

    Raises:
        ConfigError: `architectures` is missing, empty or names nothing that is built; the message lists what is.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ConfigError(
            "config.json must name the model's class in 'architectures', a list of one name; "
            f"got {architectures!r}. Known are {', '.join(LISTED)}. "
            "Set it with hf_overrides={'architectures': [...]} if the file is incomplete."
        )
    for name in architectures:
        architecture, _ = _listed(str(name))
        if architecture == "XLMRobertaModel" and config.get("position_embedding_type") == "rotary":
            architecture = "JinaRobertaModel"
        tower = (config.get("vision_config") or {}).get("model_type")
        if row := BY_TOWER.get(f"{architecture}/{tower}") or LISTED.get(architecture):
            module, _, class_name = row.partition(":")
            model_class: type[Model] = getattr(importlib.import_module(module), class_name)
            return model_class
    asked = ", ".join(map(repr, architectures))
    hint = nearest(str(architectures[0]), LISTED)
    raise ConfigError(f"no model is built for architecture {asked}. Known are {', '.join(LISTED)}.{hint}")


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


def purpose(config: Mapping[str, Any]) -> Purpose:
    """What a `config.json` describes a model for, going by its architecture's name."""
    names = map(str, config.get("architectures") or ())
    return next((found for name in names for listed, found in [_listed(name)] if listed in LISTED), Purpose.GENERATE)


def _listed(name: str) -> tuple[str, Purpose]:
    """The name under which an architecture is listed, and what it is for under its own."""
    if name in ENCODERS:
        return name, Purpose.EMBED
    if name in WITHOUT_HEAD:
        return WITHOUT_HEAD[name], Purpose.EMBED
    for end, found in HEADS.items():
        if name.endswith(end):
            stem = name.removesuffix(end)
            names = [f"{stem.removesuffix(text)}{listed}" for text in ("", "Text") for listed in LISTED_ENDS]
            return next((listed for listed in names if listed in LISTED), name), found
    return name, Purpose.GENERATE
