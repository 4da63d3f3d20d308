"""What a model that writes what it hears has in its vocabulary beside text: languages, tasks and times (Whisper)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from jaxengine.contract.speech import SECONDS_OF_TIME, SpeechRules
from jaxengine.errors import CheckpointError, RequestError
from jaxengine.media.mel import HOP
from jaxengine.text.settings import read_json_object
from jaxengine.text.tokenizer import Tokenizer

ARCHITECTURES = ("WhisperForConditionalGeneration",)
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
SAMPLES_OF_PLACE = 2 * HOP
SILENCE = ("<|nospeech|>", "<|nocaptions|>")
"""The names of one token, the second that of models before the third version."""
LATEST_FIRST = 50
"""Steps: a second, as OpenAI's and transformers' defaults have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechTokens:
    """Ids by what they mean; `tasks` by `transcribe` and `translate`, `languages` by their codes, both empty in a model of one.

    `first_time` is 0.00 s, `silence` says that nobody speaks, where the tokenizer has it. A prompt begins with as many as
    `most_previous` ids of text before it, at most, and is of `hears` samples of sound.
    """

    start: int
    end: int
    previous: int
    no_times: int
    tasks: Mapping[str, int]
    languages: Mapping[str, int]
    suppressed: tuple[int, ...]
    not_first: tuple[int, ...]
    latest_first: int
    most_previous: int
    hears: int
    silence: int | None = None

    @classmethod
    def load(cls, path: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> Self:
        """Of a model's directory and its config.json.

        Raises:
            CheckpointError: the tokenizer lacks what every Whisper has.
        """
        file = path / "generation_config.json"
        said = {**config, **(read_json_object(file) if file.is_file() else {})}
        ids = {text: number for number, text in tokenizer.added_tokens.items()}

        def of(text: str) -> int:
            if text not in ids:
                raise CheckpointError(f"the tokenizer has no {text}, without which nothing can be transcribed")
            return ids[text]

        several = bool(said.get("is_multilingual", True))
        languages = {found[1]: number for text, number in ids.items() if (found := LANGUAGE.fullmatch(text))}
        return cls(
            start=of("<|startoftranscript|>"),
            end=of("<|endoftext|>"),
            previous=of("<|startofprev|>"),
            no_times=of("<|notimestamps|>"),
            tasks={task: of(f"<|{task}|>") for task in ("transcribe", "translate")} if several else {},
            languages=languages if several else {},
            suppressed=tuple(said.get("suppress_tokens") or ()),
            not_first=tuple(said.get("begin_suppress_tokens") or ()),
            latest_first=int(said.get("max_initial_timestamp_index") or LATEST_FIRST),
            most_previous=int(config.get("max_target_positions", 448)) // 2 - 1,
            hears=int(config.get("max_source_positions", 1500)) * SAMPLES_OF_PLACE,
            silence=next((ids[text] for text in SILENCE if text in ids), None),
        )

    @property
    def first_time(self) -> int:
        """The id of 0.00 s."""
        return self.no_times + 1

    def most_samples(self, max_model_len: int) -> int:
        """Of a piece of sound."""
        return self.hears

    def seconds(self, token: int) -> float:
        """What the id of a time says."""
        return (token - self.first_time) * SECONDS_OF_TIME

    def prompt(self, language: str | None, task: str, *, times: bool, previous: Sequence[int] = ()) -> tuple[int, ...]:
        """The ids that a text begins with; the last of `previous`, the text before it, among them.

        Raises:
            RequestError: the model does not know the language, or only one task.
        """
        before = (self.previous, *previous[-self.most_previous :]) if previous else ()
        told: tuple[int, ...] = ()
        if self.languages:
            assert language is not None
            told = (self.language(language), self.tasks[task])
        elif task != "transcribe" or language not in (None, "en"):
            raise RequestError("this model transcribes English only", param="language")
        return (*before, self.start, *told, *(() if times else (self.no_times,)))

    def silent(self, previous: Sequence[int] = ()) -> tuple[int, ...]:
        """A prompt whose last id is that of silence: how likely it is tells whether anybody speaks (`no_speech_prob`, as OpenAI's
        Whisper takes it: of all that may follow the begin of the text)."""
        assert self.silence is not None
        before = (self.previous, *previous[-self.most_previous :]) if previous else ()
        return (*before, self.start, self.silence)

    def language(self, code: str) -> int:
        """The id of a language.

        Raises:
            RequestError: the model does not know it.
        """
        if code not in self.languages:
            raise RequestError(
                f"Unsupported language: {code[:20]!r}. The model knows {', '.join(sorted(self.languages))}.",
                param="language",
            )
        return self.languages[code]

    def rules(self, *, times: bool) -> SpeechRules:
        """By which a text is written."""
        return SpeechRules(
            end=self.end,
            suppressed=(*self.suppressed, self.no_times) if times else self.suppressed,
            not_first=self.not_first,
            first_time=self.first_time if times else None,
            latest_first=self.latest_first,
        )
