"""What the engine tells about itself: frozen values that cross from the loop to whoever exports them.

Times are in seconds. A *sequence* is one of the `n` outputs of a request; like vLLM, most numbers count sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from buckets import Bucket


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A sequence's prompt is computed, and its first token (or what was pooled from it) is there.

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
    def num_computed_tokens(self) -> int:
        """Prompt tokens that were not found in the KV cache."""
        return self.num_prompt_tokens - self.num_cached_tokens

    @property
    def inference_s(self) -> float:
        """From when it was first scheduled to its last token."""
        return self.prefill_s + self.decode_s

    @property
    def seconds_per_output_token(self) -> float:
        """Mean time between its tokens; 0 when there was only one."""
        gaps = self.num_generated_tokens - 1
        return self.decode_s / gaps if gaps else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """A request all of whose `n` sequences ended by themselves; the longest has `max_generated_tokens`.

    `arrival` is in seconds of `time.monotonic`. `num_generated_tokens` are those of all its sequences, `num_cached_tokens` those
    of the prompt that were found in the KV cache when it was first computed.
    """

    n: int
    max_generated_tokens: int
    arrival: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStats:
    """What speculation came to in one step: drafts that were checked, their tokens, and how many of those were right.

    `accepted_at[i]` counts the drafts whose token `i` was right.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_at: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """One step of the engine.

    `step_s` is the time from the launch of the step, or from the result of the step before where that came later, to its result
    on the host. `host_gap_s` is the time between the result of the step before and this launch: 0 when this was launched first,
    None when there was no work before. `gaps` maps seconds between two tokens of a sequence to how many tokens that was true
    for: those that decode together share the number, and tokens that came together share the time since the one before.
    """

    shape: Bucket
    num_tokens: int
    num_padded_tokens: int
    step_s: float
    host_gap_s: float | None
    num_generated_tokens: int
    first_tokens: tuple[FirstToken, ...]
    gaps: Mapping[float, int]
    drafts: DraftStats = field(default_factory=DraftStats)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompts that were completed, cached ones included."""
        return sum(first.num_prompt_tokens for first in self.first_tokens)


class StatsListener(Protocol):
    """Receives numbers between two steps, so it must be quick; it must not raise.

    One that listens to a `Recorder` is called on the engine's thread, one that listens to an `AsyncClient` on the event loop.
    """

    def on_step(self, stats: StepStats) -> None:
        """A step is done."""
        ...

    def on_finished(self, sequence: FinishedSequence, request: FinishedRequest | None) -> None:
        """A sequence ended by itself: in the step told last, or since, by a stop string. The last one brings its request."""
        ...

    def on_lost(self, finish_reason: str, num_sequences: int) -> None:
        """Sequences ended before their time: `abort` by their caller, `error` with the engine."""
        ...


@dataclass(frozen=True, slots=True)
class ShapeCount:
    """Steps that ran in one shape, their real tokens, and their token places with padding."""

    steps: int = 0
    tokens: int = 0
    padded_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """A snapshot: what runs and waits now, and what happened since the start.

    `num_running`, `num_waiting` and `num_preemptions` count sequences, `num_waiting_tokens` the tokens of those that wait.
    `kv_cache_usage` is the share of pages that sequences hold, 0 to 1. `prefix_cache_queries` and `_hits` are in tokens.
    """

    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    num_preemptions: int
    kv_cache_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    shapes: Mapping[Bucket, ShapeCount]

    @property
    def num_tokens(self) -> int:
        """Real tokens computed, of all shapes."""
        return sum(count.tokens for count in self.shapes.values())

    @property
    def num_padded_tokens(self) -> int:
        """Token places computed, padding included, of all shapes."""
        return sum(count.padded_tokens for count in self.shapes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """How an engine stands: its scheduler's counts, the steps it has run, and its programs.

    `num_programs` are compiled and ready; `num_compilations` are those since it was ready, in any thread and unplanned.
    `asleep`: the device's memory was given back.
    """

    scheduler: SchedulerStats
    num_steps: int = 0
    num_programs: int = 0
    num_compilations: int = 0
    asleep: bool = False


NOTHING_YET = EngineStatistics(
    scheduler=SchedulerStats(
        num_running=0,
        num_waiting=0,
        num_waiting_tokens=0,
        num_preemptions=0,
        kv_cache_usage=0.0,
        prefix_cache_queries=0,
        prefix_cache_hits=0,
        shapes={},
    )
)
"""The counts before an engine was heard of."""
