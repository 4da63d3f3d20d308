"""How a model that answers questions about sounds is asked to write them down (Voxtral, arXiv 2507.13264)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.media.processors.hearing import VoxtralProcessor
from jaxengine.text.tokenizer import Tokenizer

CODE = re.compile("[a-z]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructedSpeech:
    """As `SpeechTokens`, of a model whose texts have no times, and which is not told which task: it transcribes.

    A prompt is `before` (with the mark of a sound), the language where it is named, and `transcribe`, as mistral-common's
    `encode_transcription` writes it. It is of at most `most_spans` of sound, of so many samples and embeddings each.
    """

    before: tuple[int, ...]
    transcribe: int
    most_spans: int
    span_samples: int
    span_embeddings: int
    tokenizer: Tokenizer
    languages: Mapping[str, int] = field(default_factory=dict)
    silence: None = None

    @classmethod
    def load(cls, tokenizer: Tokenizer, processor: VoxtralProcessor) -> Self | None:
        """Of a model's tokenizer and what prepares its sounds; None where the tokenizer lacks what such a prompt is made of."""
        ids = {text: number for number, text in tokenizer.added_tokens.items()}
        needed = ("<s>", "[INST]", "[BEGIN_AUDIO]", "[AUDIO]", "[/INST]", "[TRANSCRIBE]")
        if not ids.keys() >= set(needed):
            return None
        *before, transcribe = (ids[text] for text in needed)
        return cls(
            before=tuple(before),
            transcribe=transcribe,
            most_spans=processor.most_spans,
            span_samples=processor.at_once,
            span_embeddings=processor.places // processor.merged,
            tokenizer=tokenizer,
        )

    def most_samples(self, max_model_len: int) -> int:
        """Of a piece of sound: no more than takes half of what a prompt and its text have room for, but a span at least."""
        fits = max_model_len // 2 // self.span_embeddings
        return self.span_samples * max(1, min(self.most_spans, fits))

    def prompt(self, language: str | None, task: str, *, times: bool, previous: Sequence[int] = ()) -> tuple[int, ...]:
        """The ids that a text follows.

        Raises:
            RequestError: what the model cannot do is asked for.
        """
        if task != "transcribe":
            raise UnsupportedError("The model does not support Translations API: it transcribes only", param="model")
        if times:
            raise UnsupportedError(
                "response_format: this model's texts have no times; ask for json or text", param="response_format"
            )
        if previous:
            raise UnsupportedError("prompt: this model takes no text before the sound; leave it out", param="prompt")
        if language is None:
            return (*self.before, self.transcribe)
        if not CODE.fullmatch(language):
            raise RequestError(
                f"language must be a code of two letters such as 'en', got {language[:20]!r}", param="language"
            )
        said = self.tokenizer.encode(f"lang:{language}", add_special_tokens=False)
        return (*self.before, *said, self.transcribe)

    def rules(self, *, times: bool) -> Any:
        """None: a text is written as the model likes."""
        return
