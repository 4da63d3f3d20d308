"""What a caller gets back, under vLLM's field names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.lora_request import LoRARequest

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


class VersionedTokens(NamedTuple):
    """So many tokens in a row were made by the weights of one version."""

    version: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One generated sequence.

    `finish_reason` is None while running, then `stop`, `length`, `abort` or `error`. `stop_reason` is the stop string or stop
    token id that ended it, None for the end-of-sequence token, and the reason of an `error`, or of an `abort` that is a failure.
    `token_ids` keep the token that stopped the sequence. `weight_versions` tell for all of them, in order, which weights made
    them.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: tuple[VersionedTokens, ...] = ()

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def weight_version(self) -> str | None:
        """The version of the weights that made the last of the tokens; None without any."""
        return self.weight_versions[-1].version if self.weight_versions else None


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

    `kv_transfer_params` of a finished one are for the engine that goes on, where the request said that another will.
    `lora_request` is the adapter that it ran with.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = field(default=None)
    kv_transfer_params: Mapping[str, Any] | None = None
    lora_request: LoRARequest | None = None


@dataclass(frozen=True, slots=True)
class PoolingOutput:
    """What `LLM.encode` gives for a prompt: float32, read-only, `[D]`, or `[tokens, D]` of a token task."""

    data: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """What `LLM.embed` gives for a prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers it has."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class ClassificationOutput:
    """What `LLM.classify` gives for a prompt: a number for each class."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.probs)


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """What `LLM.score` gives for a pair of texts."""

    score: float


T = TypeVar("T", PoolingOutput, EmbeddingOutput, ClassificationOutput, ScoringOutput)


@dataclass(frozen=True, slots=True)
class PoolingRequestOutput(Generic[T]):
    """One prompt and what it was pooled to. It is whole: `finished` is there for code that asks.

    Of one that is `aborted` the outputs mean nothing; `problem` is why, unless the engine was paused or put to sleep.
    `weight_version` are the weights that made them.
    """

    request_id: str
    outputs: T
    prompt_token_ids: tuple[int, ...]
    num_cached_tokens: int = 0
    finished: bool = True
    aborted: bool = False
    weight_version: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """One prompt and its embedding, as a list of numbers."""


@dataclass(frozen=True, slots=True)
class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """One prompt and a number for each class."""


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """Two texts and how well they fit."""


PooledOutput = PoolingRequestOutput[PoolingOutput]
"""What the front makes of a request with pooling."""

Output = RequestOutput | PooledOutput
"""What comes of a request."""
