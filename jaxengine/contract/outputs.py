"""What a caller gets back, under vLLM's field names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

MINUS_INFINITY = -9999.0
"""What a log probability of minus infinity is reported as, so that outputs stay valid JSON."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural log probability of a token, its 1-based rank among the vocabulary, and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]
"""Token id to `Logprob`: the sampled (or prompt) token first, then the most likely ones."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One generated sequence.

    `finish_reason` is None while running, then `stop`, `length`, `abort` or `error`. `stop_reason` is the stop string or stop
    token id that ended it, None for the end-of-sequence token, and the reason of an `error`. `token_ids` keep the token that
    stopped the sequence.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times of a request in seconds since the engine's clock started, and how often it was preempted."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """All sequences of one request. `prompt_logprobs[0]` is None: nothing precedes the first token.

    `embedding` is there for a request with pooling, which has no sequences: float32, of the length that was asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = field(default=None)
    embedding: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class PoolingOutput:
    """What `LLM.encode` gives for a prompt: float32, read-only."""

    data: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """What `LLM.embed` gives for a prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers it has."""
        return len(self.embedding)


T = TypeVar("T", PoolingOutput, EmbeddingOutput)


@dataclass(frozen=True, slots=True)
class PoolingRequestOutput(Generic[T]):
    """One prompt and what it was pooled to. It is whole: `finished` is there for code that asks."""

    request_id: str
    outputs: T
    prompt_token_ids: tuple[int, ...]
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """One prompt and its embedding, as a list of numbers."""
