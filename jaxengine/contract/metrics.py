"""What the engine tells about itself: frozen values that cross from the loop to whoever exports them.

Times are in seconds. A *sequence* is one of the `n` outputs of a request; like vLLM, most numbers count sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from buckets import Bucket
from jaxengine.contract.tiers import TierStats
from jaxengine.contract.updates import FIRST_VERSION


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A sequence's prompt is computed, and its first token (or what was pooled from it) is there.

    `num_cached_tokens` of the prompt were found in the KV cache, the others were computed; `cached_from` as in `Admission`.
    `seconds` counts from the arrival.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    seconds: float
    cached_from: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSequence:
    """The whole life of a sequence that ended by itself: arrival, first scheduled, first token, last token.

    `waited_for` is what kept its request from being scheduled, as in `Admission`.
    """

    request_id: str
    index: int
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
    waited_for: str | None = None

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


class ShapeCount(NamedTuple):
    """Steps that ran in one shape, their real tokens, and their token places with padding."""

    steps: int = 0
    tokens: int = 0
    padded_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderStats:
    """What became of pictures and sounds: a snapshot.

    Sequences came to need items `queries` times and found them encoded, or about to be, `hits` times. `num_queued` items have
    pages and are not encoded yet; items that are held have `pool_usage` of the pages, 0 to 1. `shapes` counts launches by bucket,
    in patches.
    """

    queries: int = 0
    hits: int = 0
    num_queued: int = 0
    pool_usage: float = 0.0
    shapes: Mapping[Bucket, ShapeCount] = field(default_factory=dict)

    @classmethod
    def total(cls, engines: Sequence[EncoderStats]) -> EncoderStats:
        """Of several engines together: sums, and the mean usage of their pools."""
        return cls(
            queries=sum(stats.queries for stats in engines),
            hits=sum(stats.hits for stats in engines),
            num_queued=sum(stats.num_queued for stats in engines),
            pool_usage=sum(stats.pool_usage for stats in engines) / len(engines),
            shapes=_summed(stats.shapes for stats in engines),
        )


NO_ENCODERS = EncoderStats()
"""Of an engine that neither sees nor hears."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """A snapshot: what runs and waits now, and what happened since the start.

    `num_running`, `num_waiting` and `num_preemptions` count sequences, `num_waiting_tokens` the tokens of those that wait.
    `kv_cache_usage` is the share of pages that sequences hold in the fullest pool, 0 to 1. Of all pools, sequences hold
    `num_held_pages`, `num_cached_pages` more can be found again, and `num_free_pages` hold nothing.
    Of those that wait, `num_asking` wait to hear whether outer stores have their pages and `num_loading` for these to come; of
    those that run, `num_arriving` wait for pages that are copied to the device.
    `prefix_cache_queries` and `_hits` are in tokens; `external_prefix_cache_hits` are those found in tiers behind the device.
    Sequences run with the `running_adapters`, by name, and with the `waiting_adapters` none does that is to. `encoders` are those
    of pictures and sounds.
    """

    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    num_preemptions: int
    kv_cache_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    shapes: Mapping[Bucket, ShapeCount]
    external_prefix_cache_hits: int = 0
    num_held_pages: int = 0
    num_cached_pages: int = 0
    num_free_pages: int = 0
    num_asking: int = 0
    num_loading: int = 0
    num_arriving: int = 0
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()
    encoders: EncoderStats = NO_ENCODERS

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
    It is `asleep` at the `sleep_level`, 0 where only nothing is computed; from 1 on the device's memory was given back, or a part
    of it. `paused`: nothing is computed until that ends. Tokens are made by the weights of `weight_version`.
    """

    scheduler: SchedulerStats
    num_steps: int = 0
    num_programs: int = 0
    num_compilations: int = 0
    asleep: bool = False
    tiers: TierStats = field(default_factory=TierStats)
    sleep_level: int = 0
    paused: bool = False
    weight_version: str = FIRST_VERSION

    @classmethod
    def total(cls, engines: Sequence[EngineStatistics]) -> EngineStatistics:
        """Of one engine or more together: sums, the mean usage of their caches, and whether all of them sleep."""
        if len(engines) == 1:
            return engines[0]
        schedulers = [engine.scheduler for engine in engines]
        return cls(
            scheduler=SchedulerStats(
                num_running=sum(stats.num_running for stats in schedulers),
                num_waiting=sum(stats.num_waiting for stats in schedulers),
                num_waiting_tokens=sum(stats.num_waiting_tokens for stats in schedulers),
                num_preemptions=sum(stats.num_preemptions for stats in schedulers),
                kv_cache_usage=sum(stats.kv_cache_usage for stats in schedulers) / len(engines),
                prefix_cache_queries=sum(stats.prefix_cache_queries for stats in schedulers),
                prefix_cache_hits=sum(stats.prefix_cache_hits for stats in schedulers),
                shapes=_summed(stats.shapes for stats in schedulers),
                external_prefix_cache_hits=sum(stats.external_prefix_cache_hits for stats in schedulers),
                num_held_pages=sum(stats.num_held_pages for stats in schedulers),
                num_cached_pages=sum(stats.num_cached_pages for stats in schedulers),
                num_free_pages=sum(stats.num_free_pages for stats in schedulers),
                running_adapters=_names(stats.running_adapters for stats in schedulers),
                waiting_adapters=_names(stats.waiting_adapters for stats in schedulers),
                encoders=EncoderStats.total([stats.encoders for stats in schedulers]),
            ),
            num_steps=sum(engine.num_steps for engine in engines),
            num_programs=sum(engine.num_programs for engine in engines),
            num_compilations=sum(engine.num_compilations for engine in engines),
            tiers=TierStats.total([engine.tiers for engine in engines]),
            asleep=all(engine.asleep for engine in engines),
            sleep_level=min(engine.sleep_level for engine in engines),
            paused=all(engine.paused for engine in engines),
            weight_version=engines[0].weight_version,
        )


def _summed(of_engines: Iterable[Mapping[Bucket, ShapeCount]]) -> dict[Bucket, ShapeCount]:
    shapes: dict[Bucket, ShapeCount] = {}
    for counts in of_engines:
        for shape, more in counts.items():
            had = shapes.get(shape, ShapeCount())
            shapes[shape] = ShapeCount(
                had.steps + more.steps, had.tokens + more.tokens, had.padded_tokens + more.padded_tokens
            )
    return shapes


def _names(of_engines: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted({name for names in of_engines for name in names}))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCondition:
    """Whether an engine is `ready` for requests, how often it was started again, and of what it died how often.

    It has `num_requests`; while it is `draining` it gets no more, and is started again without them.

    `num_resumed` requests went on after a death, one that did twice counts twice; `num_poisoned` ended because it died of them.
    """

    ready: bool
    draining: bool = False
    num_requests: int = 0
    num_restarts: int = 0
    deaths: Mapping[str, int] = field(default_factory=dict)
    num_resumed: int = 0
    num_poisoned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How engines are that somebody supervises. `trouble` is why none of them takes requests, None where one does."""

    trouble: str | None = None
    engines: tuple[EngineCondition, ...] = ()


UNSUPERVISED = Condition()
"""That of an engine which dies once."""
