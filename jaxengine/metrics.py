"""What the engine tells about itself: frozen values that cross from the loop to whoever exports them.

Times are in seconds. A *sequence* is one of the `n` outputs of a request; like vLLM, most numbers count sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from buckets import StepShape


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A sequence's prompt is computed and its first token is there.

    `num_cached_tokens` of the prompt were found in the KV cache, the others were computed. `seconds` counts from the arrival.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSequence:
    """The whole life of a sequence that ended by itself: arrival, first scheduled, first token, last token."""

    finish_reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    max_tokens: int
    num_preemptions: int
    queue_s: float
    prefill_s: float
    decode_s: float
    total_s: float

    @property
    def inference_s(self) -> float:
        """From when it was first scheduled to its last token."""
        return self.prefill_s + self.decode_s

    @property
    def seconds_per_output_token(self) -> float:
        """Mean time between its tokens; 0 when there was only one."""
        gaps = self.num_generated_tokens - 1
        return self.decode_s / gaps if gaps else 0.0


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request all of whose `n` sequences ended by themselves; the longest has `max_generated_tokens`."""

    n: int
    max_generated_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """One step of the engine.

    `step_s` is the time from the launch of its first program to its result on the host, `host_gap_s` the time between the result
    of the step before and this launch (None when there was no work before). `gaps` maps the seconds since a sequence's
    previous token to how many sequences that was true for: those that decode together share the number.
    """

    shape: StepShape
    num_tokens: int
    num_padded_tokens: int
    step_s: float
    host_gap_s: float | None
    first_tokens: tuple[FirstToken, ...]
    gaps: Mapping[float, int]
    finished_sequences: tuple[FinishedSequence, ...]
    finished_requests: tuple[FinishedRequest, ...]

    @property
    def num_generated_tokens(self) -> int:
        """Tokens that sequences gained."""
        return len(self.first_tokens) + sum(self.gaps.values())

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompts that were completed, cached ones included."""
        return sum(first.num_prompt_tokens for first in self.first_tokens)


class StatsListener(Protocol):
    """Receives numbers on the engine's thread, so it must be quick; it must not raise."""

    def on_step(self, stats: StepStats) -> None:
        """A step is done."""
        ...

    def on_lost(self, finish_reason: str, num_sequences: int) -> None:
        """Sequences ended before their time: `abort` by their caller, `error` with the engine."""
        ...
