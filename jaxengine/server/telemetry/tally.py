"""Sums up the statistics of steps until /metrics is read. All of it happens on the event loop."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from buckets import Bucket
from jaxengine.contract.metrics import (
    DraftStats,
    EngineStatistics,
    FinishedRequest,
    FinishedSequence,
    SchedulerStats,
    StepStats,
)

LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
BETWEEN_TOKENS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
STEP_TOKENS = (1, *(2**power for power in range(3, 15)))
SEQUENCES = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
STEP_TIME = tuple(digit * 10.0**power for power in range(-4, 1) for digit in (1, 2, 5))
HOST_GAP = tuple(digit * 10.0**power for power in range(-5, 0) for digit in (1, 2, 5))


TOKENS = None
"""Stands for `token_bounds`, which depend on the model."""


class Measure(NamedTuple):
    """What a distribution is of, its bounds, and the attribute of a `FinishedSequence` that it takes in, if it does one."""

    about: str
    bounds: Sequence[float] | None
    of_sequence: str = ""


DISTRIBUTIONS: Mapping[str, Measure] = {
    "time_to_first_token_seconds": Measure("From the arrival of a sequence to its first token.", FIRST_TOKEN),
    "inter_token_latency_seconds": Measure("From one token of a sequence to the next.", BETWEEN_TOKENS),
    "request_time_per_output_token_seconds": Measure(
        "Mean time between the tokens of a finished sequence.", BETWEEN_TOKENS, "seconds_per_output_token"
    ),
    "e2e_request_latency_seconds": Measure("From arrival to end.", LATENCY, "total_s"),
    "request_queue_time_seconds": Measure("From arrival to the first step.", LATENCY, "queue_s"),
    "request_inference_time_seconds": Measure("From the first step to the last token.", LATENCY, "inference_s"),
    "request_prefill_time_seconds": Measure("From the first step to the first token.", LATENCY, "prefill_s"),
    "request_decode_time_seconds": Measure("From the first token to the last.", LATENCY, "decode_s"),
    "request_prompt_tokens": Measure("Prompt tokens of a finished sequence.", TOKENS, "num_prompt_tokens"),
    "request_generation_tokens": Measure("Generated tokens of a finished sequence.", TOKENS, "num_generated_tokens"),
    "request_max_num_generation_tokens": Measure(
        "Generated tokens of the longest sequence of a finished request.", TOKENS
    ),
    "request_params_max_tokens": Measure("The max_tokens of a finished sequence.", TOKENS, "max_tokens"),
    "request_prefill_kv_computed_tokens": Measure(
        "Prompt tokens of a finished sequence that were computed, not found in the cache.",
        TOKENS,
        "num_computed_tokens",
    ),
    "request_params_n": Measure("Sequences of a finished request.", SEQUENCES),
    "request_num_preemptions": Measure("Preemptions of a finished sequence.", PREEMPTIONS, "num_preemptions"),
    "iteration_tokens_total": Measure("Tokens of a step: completed prompts and generated tokens.", STEP_TOKENS),
}
"""By vLLM's names."""


def token_bounds(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, ... as far as `max_model_len`."""
    powers = range(len(str(max_model_len)))
    return tuple(bound for power in powers for digit in (1, 2, 5) if (bound := digit * 10**power) <= max_model_len)


class Distribution:
    """Counts values by the first of `bounds` that is not below them, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Note `value` so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """For each bound, and for infinity, how many values do not exceed it: the form of the exposition."""
        seen, buckets = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), seen))
        return buckets


class Tally:
    """Everything since it began to listen.

    Attributes are in the units of `contract.metrics`; `cached_from` counts those of the cached tokens that came from other tiers
    than the device, `ended` sequences by finish reason, `accepted_at` drafts by the
    position of a token that was right.
    """

    def __init__(self, *, max_model_len: int) -> None:
        tokens = token_bounds(max_model_len)
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0
        self.accepted_at: Counter[int] = Counter()
        self.cached_from: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.distributions = {
            name: Distribution(tokens if measure.bounds is None else measure.bounds)
            for name, measure in DISTRIBUTIONS.items()
        }
        self.host_gaps = Distribution(HOST_GAP)
        self.step_times: dict[Bucket, Distribution] = defaultdict(lambda: Distribution(STEP_TIME))
        self.computed_tokens: Counter[Bucket] = Counter()
        self.padding_tokens: Counter[Bucket] = Counter()

    def on_step(self, stats: StepStats) -> None:
        """Add a step. vLLM counts a prompt in the step that completes it, and only steps that yield a token."""
        self._add_shape(stats)
        self._add_drafts(stats.drafts)
        self.prompt_tokens += stats.num_prompt_tokens
        self.generated_tokens += stats.num_generated_tokens
        if stats.num_generated_tokens:
            tokens = stats.num_prompt_tokens + stats.num_generated_tokens
            self.distributions["iteration_tokens_total"].add(tokens)
        for first in stats.first_tokens:
            self.cached_tokens += first.num_cached_tokens
            self.cached_from.update(dict(first.cached_from))
            self.distributions["time_to_first_token_seconds"].add(first.seconds)
        for seconds, times in stats.gaps.items():
            self.distributions["inter_token_latency_seconds"].add(seconds, times)

    def on_finished(self, sequence: FinishedSequence, request: FinishedRequest | None) -> None:
        """Add a sequence, and with the last one its request."""
        self._add_sequence(sequence)
        if request is not None:
            self.distributions["request_params_n"].add(request.n)
            self.distributions["request_max_num_generation_tokens"].add(request.max_generated_tokens)

    def on_lost(self, finish_reason: str, num_sequences: int) -> None:
        """Sequences that never finished have no place among the distributions."""
        self.ended[finish_reason] += num_sequences

    def _add_shape(self, stats: StepStats) -> None:
        self.step_times[stats.shape].add(stats.step_s)
        self.computed_tokens[stats.shape] += stats.num_tokens
        self.padding_tokens[stats.shape] += stats.num_padded_tokens - stats.num_tokens
        if stats.host_gap_s is not None:
            self.host_gaps.add(stats.host_gap_s)

    def _add_drafts(self, drafts: DraftStats) -> None:
        self.num_drafts += drafts.num_drafts
        self.num_draft_tokens += drafts.num_draft_tokens
        self.num_accepted_tokens += drafts.num_accepted_tokens
        for position, count in enumerate(drafts.accepted_at):
            self.accepted_at[position] += count

    def _add_sequence(self, sequence: FinishedSequence) -> None:
        self.ended[sequence.finish_reason] += 1
        for name, measure in DISTRIBUTIONS.items():
            if measure.of_sequence:
                self.distributions[name].add(getattr(sequence, measure.of_sequence))


class EngineNumbers(NamedTuple):
    """All that is known of one engine: its rank among the replicas, its counts as of its last step, and what they added up to."""

    rank: int
    statistics: EngineStatistics
    tally: Tally

    @property
    def scheduler(self) -> SchedulerStats:
        """Its scheduler's counts."""
        return self.statistics.scheduler
