"""What a model's files say about its text, and about what prompts show beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from jaxengine.contract.model_source import ModelSource
from jaxengine.front.instructed_speech import InstructedSpeech
from jaxengine.front.speech import ARCHITECTURES, SpeechTokens
from jaxengine.media.processors import Processor, processor_for
from jaxengine.media.processors.hearing import VoxtralProcessor
from jaxengine.text.generation_config import GenerationDefaults
from jaxengine.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class ModelText:
    """How prompts become tokens and tokens text. `tokenizer` is None where the engine works on ids only.

    `processor` prepares what prompts show, where the family has anything for it. `speech` are ids of a model that writes what it
    hears.
    """

    tokenizer: Tokenizer | None
    generation: GenerationDefaults
    processor: Processor | None = None
    speech: SpeechTokens | InstructedSpeech | None = None

    @classmethod
    def load(cls, source: ModelSource) -> Self:
        """Read a model's files.

        Raises:
            CheckpointError: they are missing or damaged.
            ConfigError: an option contradicts them.
        """
        options = source.config.model
        generation = GenerationDefaults.load(
            source.path,
            source.config_json,
            hf_overrides=options.hf_overrides,
            source=options.generation_config,
            override=options.override_generation_config,
        )
        tokenizer = _tokenizer(source)
        processor = processor_for(
            source.path,
            source.config_json,
            source.config.media.mm_processor_kwargs,
            None if tokenizer is None else partial(tokenizer.encode, add_special_tokens=False),
            decode=None if tokenizer is None else tokenizer.decode,
        )
        architectures = source.config_json.get("architectures") or ()
        speech: SpeechTokens | InstructedSpeech | None = None
        if tokenizer is not None and isinstance(processor, VoxtralProcessor):
            speech = InstructedSpeech.load(tokenizer, processor)
        if tokenizer is not None and not set(architectures).isdisjoint(ARCHITECTURES):
            speech = SpeechTokens.load(source.path, source.config_json, tokenizer)
        return cls(tokenizer=tokenizer, generation=generation, processor=processor, speech=speech)


def _tokenizer(source: ModelSource) -> Tokenizer | None:
    options = source.config.model
    if options.skip_tokenizer_init:
        return None
    if source.tokenizer_path is not None:
        return Tokenizer.load(source.tokenizer_path, chat_template=options.chat_template)
    return Tokenizer.load(source.path, config_json=source.config_json, chat_template=options.chat_template)
