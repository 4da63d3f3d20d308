"""Of each family what prepares pictures, sounds and videos for its encoder: NumPy and Pillow, as transformers does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from jaxengine.contract.media import Modality
from jaxengine.media.processors.processor import Made, Most, Processor, Settings, with_kwargs

PROCESSORS: Mapping[str, tuple[str, str]] = {
    "Gemma3ForConditionalGeneration": ("gemma3", "Gemma3Processor"),
    "Gemma4ForConditionalGeneration": ("gemma4", "Gemma4Processor"),
    "Idefics3ForConditionalGeneration": ("tiles", "SmolVlmProcessor"),
    "InternVLForConditionalGeneration": ("tiles", "InternVlProcessor"),
    "Llama4ForConditionalGeneration": ("tiles", "Llama4Processor"),
    "LlavaOnevisionForConditionalGeneration": ("onevision", "OneVisionProcessor"),
    "LlavaForConditionalGeneration": ("llava", "LlavaProcessor"),
    "Mistral3ForConditionalGeneration": ("pixtral", "PixtralProcessor"),
    "Qwen2AudioForConditionalGeneration": ("hearing", "Qwen2AudioProcessor"),
    "Qwen2_5_VLForConditionalGeneration": ("qwen", "Qwen2_5Processor"),
    "Qwen3VLForConditionalGeneration": ("qwen", "Qwen3Processor"),
    "Qwen3VLMoeForConditionalGeneration": ("qwen", "Qwen3Processor"),
    "Qwen3_5ForConditionalGeneration": ("qwen", "Qwen3Processor"),
    "Qwen3_5MoeForConditionalGeneration": ("qwen", "Qwen3Processor"),
    "SmolVLMForConditionalGeneration": ("tiles", "SmolVlmProcessor"),
    "VoxtralForConditionalGeneration": ("hearing", "VoxtralProcessor"),
    "WhisperForConditionalGeneration": ("whisper", "WhisperProcessor"),
}
"""By config.json's architecture: the module, and the class in it."""
TOWERS: Mapping[str, tuple[str, str]] = {"LlavaForConditionalGeneration/pixtral": ("pixtral", "PixtralProcessor")}
"""By an architecture and the kind of its tower, where that decides."""


def processor_for(
    path: Path,
    config: Mapping[str, Any],
    kwargs: Mapping[str, Any] | None = None,
    encode: Callable[[str], Sequence[int]] | None = None,
    *,
    decode: Callable[[Sequence[int]], str] | None = None,
    max_patches: int | None = None,
) -> Processor | None:
    """What prepares items for the model of a directory; None where there is nothing for its architecture.

    Args:
        path: the model's directory, whose preprocessor_config.json and the like are read.
        config: its config.json.
        kwargs: `mm_processor_kwargs`.
        encode: makes token ids of a text; without it there is nothing but limits.
        decode: makes the text again.
        max_patches: of an item, where the family can make it smaller.

    Raises:
        CheckpointError: the files do not say what is needed.
        ConfigError: `kwargs` ask for what the family does not have.
    """
    kind = processor_class(config)
    if kind is None:
        return None
    settings = replace(Settings.read(path, config, encode), decode=decode, max_patches=max_patches)
    return kind(with_kwargs(settings, kind.knobs, kwargs or {}))


def limits(path: Path, config: Mapping[str, Any], kwargs: Mapping[str, Any] | None = None) -> Mapping[Modality, Most]:
    """The most that an item of each modality can be; empty where there is nothing for the architecture. Errors as above."""
    processor = processor_for(path, config, kwargs)
    return {} if processor is None else {of: processor.most(of) for of in processor.modalities}


def processor_class(config: Mapping[str, Any]) -> type[Processor] | None:
    """The class for what a config.json describes, if there is one."""
    for architecture in config.get("architectures") or ():
        tower = (config.get("vision_config") or {}).get("model_type")
        row = TOWERS.get(f"{architecture}/{tower}") or PROCESSORS.get(architecture)
        if row is not None:
            found: type[Processor] = getattr(import_module(f"{__name__}.{row[0]}"), row[1])
            return found
    return None


__all__ = ["PROCESSORS", "TOWERS", "Made", "Most", "Processor", "limits", "processor_class", "processor_for"]
