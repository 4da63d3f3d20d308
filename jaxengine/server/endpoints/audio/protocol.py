"""What `/v1/audio/transcriptions` and `/v1/audio/translations` take and give, by OpenAI's names and vLLM's."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from jaxengine.server.http.fields import Int64, Seconds

Format = Literal["json", "text", "srt", "verbose_json", "vtt"]


class SpeechRequest(BaseModel):
    """The fields of a form beside its file. Those that are not declared are accepted: `http.unknown` knows which are refused."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None
    language: str | None = None
    to_language: str | None = None
    prompt: str = ""
    response_format: Format = "json"
    timestamp_granularities: list[Literal["word", "segment"]] = Field(default_factory=list)
    stream: bool = False
    stream_include_usage: bool = False
    stream_continuous_usage_stats: bool = False
    temperature: Annotated[float, Field(ge=0.0)] = 0.0
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    max_completion_tokens: Int64 | None = None
    priority: Int64 | None = 0
    request_id: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    timeout: Seconds | None = None
    resume: bool | None = True


class DurationUsage(TypedDict):
    """Sound is counted in whole seconds."""

    type: Literal["duration"]
    seconds: int


class Text(TypedDict):
    """The answer in `json`."""

    text: str
    usage: NotRequired[DurationUsage]


class Segment(TypedDict):
    """A part of a text between two times, in seconds. What is not known is null."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float | None


class TimedWord(TypedDict):
    """A word, and when it is said, in seconds."""

    word: str
    start: float
    end: float


class VerboseText(TypedDict):
    """The answer in `verbose_json`. What is not asked for is null."""

    task: str
    duration: float
    language: str
    text: str
    segments: list[Segment] | None
    words: list[TimedWord] | None
    usage: DurationUsage
