"""Which class drafts: by the architecture of the draft's own checkpoint, or of layers of the target's by the target's class."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import COMMON_IGNORED
from jaxengine.errors import ConfigError

DRAFTS = "jaxengine.device.models.drafts"

PREDICTORS: Mapping[str, str] = {
    "DeepseekV3ForCausalLM": f"{DRAFTS}.predictors:DeepseekV3Predictor",
    "DeepseekV32ForCausalLM": f"{DRAFTS}.predictors:DeepseekV32Predictor",
    "Ernie4_5_MoeForCausalLM": f"{DRAFTS}.predictors:Ernie4_5_MoePredictor",
    "Glm4MoeForCausalLM": f"{DRAFTS}.predictors:Glm4MoePredictor",
    "Glm4MoeLiteForCausalLM": f"{DRAFTS}.predictors:Glm4MoeLitePredictor",
    "GlmMoeDsaForCausalLM": f"{DRAFTS}.predictors:GlmMoeDsaPredictor",
    "MiMoForCausalLM": f"{DRAFTS}.predictors:MiMoPredictor",
    "MiMoV2FlashForCausalLM": f"{DRAFTS}.predictors:MiMoV2FlashPredictor",
    "MiniMaxM2ForCausalLM": f"{DRAFTS}.predictors:MiniMaxM2Predictor",
    "NemotronHForCausalLM": f"{DRAFTS}.predictors:NemotronHPredictor",
    "Qwen3_5ForCausalLM": f"{DRAFTS}.predictors:Qwen3_5Predictor",
    "Qwen3_5ForConditionalGeneration": f"{DRAFTS}.predictors:Qwen3_5Predictor",
    "Qwen3_5MoeForCausalLM": f"{DRAFTS}.predictors:Qwen3_5MoePredictor",
    "Qwen3_5MoeForConditionalGeneration": f"{DRAFTS}.predictors:Qwen3_5MoePredictor",
    "Qwen3NextForCausalLM": f"{DRAFTS}.predictors:Qwen3NextPredictor",
}
"""Layers that predict several tokens, by the target's class."""

EAGLE, EAGLE3, DFLASH = f"{DRAFTS}.eagle:Eagle", f"{DRAFTS}.eagle:Eagle3", f"{DRAFTS}.dflash:DFlash"

HEADS: Mapping[str, str] = {
    "EagleLlamaForCausalLM": EAGLE,
    "LlamaForCausalLMEagle": EAGLE,
    "LlamaForCausalLMEagle3": EAGLE3,
    "Eagle3LlamaForCausalLM": EAGLE3,
    "DFlashDraftModel": DFLASH,
    "DFlashQwen3ForCausalLM": DFLASH,
}
"""Drafts with checkpoints of their own that read the target's states, by what their config.json says they are."""

BY_METHOD: Mapping[str, str] = {"eagle": EAGLE, "eagle3": EAGLE3, "dflash": DFLASH}


def predictor_of(model_class: type[Any]) -> type[Any]:
    """What drafts with layers of the target's checkpoint.

    Raises:
        ConfigError: the family has no such layers; the message lists those that have.
    """
    name = model_class.__name__
    if name not in PREDICTORS:
        raise ConfigError(
            f"method 'mtp' drafts with layers of the model's own that predict several tokens, and {name} has none; those that "
            f"have: {', '.join(PREDICTORS)}"
        )
    return _load(PREDICTORS[name])


def head_of(config_json: Mapping[str, Any], method: str | None) -> type[Any] | None:
    """What reads the target's states, by a draft's config.json; None: it is a model that stands for itself.

    Raises:
        ConfigError: it is another draft than the `method` says.
    """
    names = [str(name) for name in config_json.get("architectures") or ()]
    found = next((HEADS[name] for name in names if name in HEADS), None)
    asked = BY_METHOD.get(str(method))
    if found is not None and method is not None and found != asked:
        kinds = ", ".join(name for name, path in BY_METHOD.items() if path == found)
        raise ConfigError(
            f"speculative_config: the draft's config.json says {names[0]}, which is method {kinds!r}, not {method!r}"
        )
    return None if (path := found or asked) is None else _load(path)


def read_head_config(draft_class: type[Any], config_json: Mapping[str, Any], target: DecoderConfig) -> Any:
    """The configuration of what `head_of` found, for this target.

    Raises:
        ConfigError: missing, unknown or unsupported keys, or it drafts for another model.
    """
    reader = ConfigReader(config_json, where="the draft's config.json")
    result = draft_class.read_draft(reader, target)
    reader.finish({**COMMON_IGNORED, **draft_class.IGNORED}, family=draft_class.__name__)
    return result


def _load(path: str) -> type[Any]:
    module, _, name = path.partition(":")
    found: type[Any] = getattr(importlib.import_module(module), name)
    return found
