"""Prometheus metrics under vLLM's names, types, labels and buckets, so that its dashboards work; ours begin with `jaxengine:`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client.registry import Collector
from prometheus_fastapi_instrumentator import Instrumentator

from jaxengine.contract.messages import Cause
from jaxengine.server.telemetry.tally import DISTRIBUTIONS, Distribution, EngineNumbers

if TYPE_CHECKING:
    from fastapi import FastAPI

    from jaxengine.contract.metrics import EngineCondition, SchedulerStats
    from jaxengine.front.front import Front

UNCOUNTED = ("/metrics", "/health", "/load", "/ping", "/version", "/dashboard/stream")
"""Paths that neither the HTTP metrics nor `/load` count."""

TIERS = ("host", "disk", "p2p")
"""Where pages come from that the device does not have: this host's memory, files, another engine."""

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")

FORMER_NAMES = {"inter_token_latency_seconds": "time_per_output_token_seconds"}
"""Histograms that older dashboards know by another name."""

COUNTERS: Mapping[str, tuple[str, Callable[[EngineNumbers], int]]] = {
    "num_preemptions": ("Sequences that gave up their pages.", lambda engine: engine.scheduler.num_preemptions),
    "prompt_tokens": ("Prompt tokens, cached ones included.", lambda engine: engine.tally.prompt_tokens),
    "prompt_tokens_cached": ("Prompt tokens found in the KV cache.", lambda engine: engine.tally.cached_tokens),
    "generation_tokens": ("Generated tokens.", lambda engine: engine.tally.generated_tokens),
    "prefix_cache_queries": (
        "Tokens looked up in the prefix cache.",
        lambda engine: engine.scheduler.prefix_cache_queries,
    ),
    "prefix_cache_hits": ("Tokens found in the prefix cache.", lambda engine: engine.scheduler.prefix_cache_hits),
    "external_prefix_cache_queries": (
        "Tokens looked up in the tiers behind the device.",
        lambda engine: (
            engine.scheduler.prefix_cache_queries - engine.scheduler.prefix_cache_hits
            if engine.statistics.tiers.num_blocks
            else 0
        ),
    ),
    "external_prefix_cache_hits": (
        "Tokens found in the tiers behind the device.",
        lambda engine: engine.scheduler.external_prefix_cache_hits,
    ),
    "mm_cache_queries": (
        "Pictures and sounds that prompts came to need.",
        lambda engine: engine.scheduler.encoders.queries,
    ),
    "mm_cache_hits": (
        "Of these, those that were encoded already, or about to be.",
        lambda engine: engine.scheduler.encoders.hits,
    ),
    "gpu_prefix_cache_queries": (
        "Former name of prefix_cache_queries.",
        lambda engine: engine.scheduler.prefix_cache_queries,
    ),
    "gpu_prefix_cache_hits": ("Former name of prefix_cache_hits.", lambda engine: engine.scheduler.prefix_cache_hits),
}
LIVES: Mapping[str, tuple[str, Callable[[EngineCondition], int]]] = {
    "engine_restarts": ("Engines that were started again.", lambda life: life.num_restarts),
    "requests_resumed": ("Requests that went on after the death of an engine.", lambda life: life.num_resumed),
    "requests_poisoned": ("Requests that ended because engines died of them.", lambda life: life.num_poisoned),
}
GAUGES: Mapping[str, tuple[str, Callable[[SchedulerStats], float]]] = {
    "num_requests_running": ("Sequences that hold pages.", lambda stats: stats.num_running),
    "num_requests_waiting": ("Sequences that wait for room.", lambda stats: stats.num_waiting),
    "kv_cache_usage_perc": ("Share of the KV pages that sequences hold, 0 to 1.", lambda stats: stats.kv_cache_usage),
    "gpu_cache_usage_perc": ("Former name of kv_cache_usage_perc.", lambda stats: stats.kv_cache_usage),
}


def make_registry(collector: EngineCollector) -> CollectorRegistry:
    """A registry with everything that /metrics shows of the engine and this process."""
    registry = CollectorRegistry()
    add_process(registry)
    registry.register(collector)
    return registry


def add_process(registry: CollectorRegistry) -> None:
    """Show this process."""
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)


def count_http(app: FastAPI, registry: CollectorRegistry) -> None:
    """Add a layer to `app` that counts and times requests by handler, method and kind of status."""
    Instrumentator(excluded_handlers=[f"^{path}$" for path in UNCOUNTED], registry=registry).instrument(app)


Rows = Iterable[tuple[int, Mapping[str, str], float]]
"""Samples of a family: rank of the engine, other labels, value."""


@dataclass(frozen=True, eq=False)
class EngineCollector(Collector):
    """Makes the exposition's families from the numbers of the moment.

    Attributes:
        front: knows what the engines were built with.
        model_name: the label of all engine metrics, beside `engine`, which is the rank.
        engines: their numbers of the moment, one at least.
        rejections: submissions refused so far, by reason.
    """

    front: Front
    model_name: str
    engines: Callable[[], Sequence[EngineNumbers]]
    rejections: Callable[[], Mapping[str, int]]

    def collect(self) -> Iterator[Metric]:
        """All families, of one moment."""
        engines = self.engines()
        yield from (
            *self._gauges(engines),
            *self._counters(engines),
            *self._histograms(engines),
            *self._own(engines),
            *self._tiers(engines),
            *self._lives(engines),
        )

    def _lives(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        """What engines have died of, and what became of their requests."""
        conditions = self.front.channel.condition.engines  # none where nobody supervises
        lives = [(numbers.rank, life) for numbers, life in zip(engines, conditions, strict=False)]
        for name, (text, value) in LIVES.items():
            yield self._counter(f"jaxengine:{name}", text, [(rank, {}, value(life)) for rank, life in lives])
        yield self._counter(
            "jaxengine:engine_deaths",
            "Engines that died, by cause.",
            [(rank, {"cause": cause}, life.deaths.get(cause, 0)) for rank, life in lives for cause in get_args(Cause)],
        )

    def _gauges(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        for name, (text, value) in GAUGES.items():
            yield self._gauge(f"vllm:{name}", text, [(each.rank, {}, value(each.scheduler)) for each in engines])
        yield self._gauge(
            "vllm:num_requests_waiting_by_reason",
            "Sequences that wait, by reason.",
            [
                (each.rank, {"reason": reason}, count)
                for each in engines
                for deferred in (each.scheduler.num_asking + each.scheduler.num_loading,)
                for reason, count in (("capacity", each.scheduler.num_waiting - deferred), ("deferred", deferred))
            ],
        )
        if self.front.config.cache.kv_transfer_config:  # or else vLLM has none of these either
            yield self._gauge(
                "vllm:num_requests_kv_fetch_by_stage",
                "Sequences that wait for pages from elsewhere: whether they are there, for them to come, to be copied.",
                [
                    (each.rank, {"stage": stage}, count)
                    for each in engines
                    for stage, count in (
                        ("lookup", each.scheduler.num_asking),
                        ("load", each.scheduler.num_loading),
                        ("copy", each.scheduler.num_arriving),
                    )
                ],
            )
        yield self._gauge(
            "vllm:engine_sleep_state",
            "1 for the state the engine is in.",
            [
                (each.rank, {"sleep_state": state}, float(state == _sleep_state(each)))
                for each in engines
                for state in ("awake", "weights_offloaded", "discard_all")
            ],
        )
        if (adapters := self.front.intake.facts.adapters) is not None:  # or else vLLM has none of these either
            yield self._gauge(
                "vllm:lora_requests_info",
                "Adapters that sequences run with and wait for, as labels; the value is the time of the day in seconds.",
                [
                    (
                        each.rank,
                        {
                            "max_lora": str(adapters.max_loras),
                            "running_lora_adapters": ",".join(each.scheduler.running_adapters),
                            "waiting_lora_adapters": ",".join(each.scheduler.waiting_adapters),
                        },
                        time.time(),
                    )
                    for each in engines
                ],
            )
        cache = self._cache_config()
        yield self._gauge(
            "vllm:cache_config_info", "The KV cache, as labels.", [(each.rank, cache, 1) for each in engines]
        )

    def _counters(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        for name, (text, value) in COUNTERS.items():
            yield self._counter(f"vllm:{name}", text, [(each.rank, {}, value(each)) for each in engines])
        yield self._counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their keys and values came from.",
            [
                (each.rank, {"source": source}, count)
                for each in engines
                for source, count in (
                    ("local_compute", each.tally.prompt_tokens - each.tally.cached_tokens),
                    ("local_cache_hit", each.tally.cached_tokens - each.tally.cached_from["p2p"]),
                    ("external_kv_transfer", each.tally.cached_from["p2p"]),
                )
            ],
        )
        yield self._counter(
            "vllm:prompt_tokens_cached_by_source",
            "Cached prompt tokens by where they were.",
            [
                (each.rank, {"source": source}, count)
                for each in engines
                for source, count in (
                    ("device", each.tally.cached_tokens - each.tally.cached_from.total()),
                    *((tier, each.tally.cached_from[tier]) for tier in TIERS),
                )
            ],
        )
        yield self._counter(
            "vllm:request_success",
            "Sequences that ended, by reason.",
            [
                (each.rank, {"finished_reason": reason}, each.tally.ended[reason])
                for each in engines
                for reason in FINISH_REASONS
            ],
        )
        yield self._counter(
            "vllm:admission_rejections",
            "Submissions refused, by reason, before any engine had them.",
            [(engines[0].rank, {"reason": reason}, count) for reason, count in self.rejections().items()],
        )
        speculation = self.front.config.scheduler.speculation
        if speculation is not None:  # or else vLLM has none of these either
            yield from self._speculation(engines, speculation.num_tokens)

    def _speculation(self, engines: Sequence[EngineNumbers], num_tokens: int) -> Iterator[Metric]:
        for name, text in (
            ("num_drafts", "Drafts that were checked."),
            ("num_draft_tokens", "Tokens of drafts."),
            ("num_accepted_tokens", "Tokens of drafts that were right."),
        ):
            rows: Rows = [(each.rank, {}, getattr(each.tally, name)) for each in engines]
            yield self._counter(f"vllm:spec_decode_{name}", text, rows)
        yield self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Tokens of drafts that were right, by their position in the draft.",
            [
                (each.rank, {"position": str(position)}, each.tally.accepted_at[position])
                for each in engines
                for position in range(num_tokens)
            ],
        )

    def _histograms(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        for name, measure in DISTRIBUTIONS.items():
            rows: list[tuple[int, Mapping[str, str], Distribution]] = [
                (each.rank, {}, each.tally.distributions[name]) for each in engines
            ]
            yield self._histogram(f"vllm:{name}", measure.about, rows)
            if former := FORMER_NAMES.get(name):
                yield self._histogram(f"vllm:{former}", f"Former name of {name}.", rows)

    def _own(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        yield self._gauge(
            "jaxengine:programs",
            "Compiled programs.",
            [(each.rank, {}, each.statistics.num_programs) for each in engines],
        )
        yield self._counter(
            "jaxengine:compile_events_after_ready",
            "Compilations since the engine was ready; 0 is the promise.",
            [(each.rank, {}, each.statistics.num_compilations) for each in engines],
        )
        yield self._gauge(
            "jaxengine:startup_phase_seconds",
            "Seconds that each phase of the start took.",
            [
                (each.rank, {"phase": phase}, seconds)
                for each in engines
                for phase, seconds in self.front.channel.facts.start_phases.items()
            ],
        )
        yield self._counter(
            "jaxengine:computed_tokens",
            "Real tokens computed, by step shape.",
            [
                (each.rank, {"shape": str(shape)}, count)
                for each in engines
                for shape, count in each.tally.computed_tokens.items()
            ],
        )
        yield self._counter(
            "jaxengine:padding_tokens",
            "Token places computed beyond the real tokens, by step shape.",
            [
                (each.rank, {"shape": str(shape)}, count)
                for each in engines
                for shape, count in each.tally.padding_tokens.items()
            ],
        )
        yield self._histogram(
            "jaxengine:step_time_seconds",
            "From the launch of a step, or the result of the one before if later, to its result on the host, by step shape.",
            [
                (each.rank, {"shape": str(shape)}, times)
                for each in engines
                for shape, times in each.tally.step_times.items()
            ],
        )
        yield self._histogram(
            "jaxengine:host_gap_seconds",
            "From the result of a step to the launch of the next, while there is work; 0 where that was launched before.",
            [(each.rank, {}, each.tally.host_gaps) for each in engines],
        )

    def _tiers(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        yield self._gauge(
            "jaxengine:host_blocks",
            "Pages of the KV cache that the host's memory has room for, by state.",
            [
                (each.rank, {"state": state}, count)
                for each in engines
                for state, count in (
                    ("cached", each.statistics.tiers.num_cached_blocks),
                    ("arriving", each.statistics.tiers.num_arriving_blocks),
                    ("free", each.statistics.tiers.num_free_blocks),
                )
            ],
        )
        yield self._counter(
            "jaxengine:kv_pages_dropped",
            "Pages that the device gave up without a copy on the host, because too many left at once.",
            [(each.rank, {}, each.statistics.tiers.num_dropped_pages) for each in engines],
        )
        for unit, text in (("bytes", "Bytes of KV pages that moved"), ("seconds", "Seconds for which KV pages moved")):
            yield self._counter(
                f"jaxengine:kv_transfer_{unit}",
                f"{text} between tiers, by way.",
                [
                    (each.rank, {"way": way}, getattr(traffic, unit))
                    for each in engines
                    for way, traffic in each.statistics.tiers.traffic.items()
                ],
            )

    def _cache_config(self) -> dict[str, str]:
        """Every option of the cache, the names that vLLM has for some of them, and what they came to."""
        config, facts = self.front.config.cache, self.front.channel.facts
        values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)} | {
            "page_size": facts.page_size,
            "block_size": facts.page_size,
            "num_pages": facts.num_pages,
            "num_gpu_blocks": facts.num_pages,
            "num_cpu_blocks": facts.host_blocks,
            "gpu_memory_utilization": config.memory_utilization,
            "kv_cache_size_tokens": facts.kv_tokens,
            "kv_cache_max_concurrency": f"{facts.kv_tokens / facts.max_model_len:.2f}",
        }
        return {name: str(value) for name, value in values.items()}

    def _family(self, kind: str, name: str, text: str, rows: Rows) -> Metric:
        family = Metric(name, text, kind)
        for rank, labels, value in rows:
            family.add_sample(f"{name}_total" if kind == "counter" else name, self._labels(rank, labels), value)
        return family

    _gauge = partialmethod(_family, "gauge")
    _counter = partialmethod(_family, "counter")

    def _labels(self, rank: int, others: Mapping[str, str]) -> dict[str, str]:
        return {"model_name": self.model_name, "engine": str(rank), **others}

    def _histogram(self, name: str, text: str, rows: Iterable[tuple[int, Mapping[str, str], Distribution]]) -> Metric:
        family = Metric(name, text, "histogram")
        for rank, labels, distribution in rows:
            labelled = self._labels(rank, labels)
            for bound, count in distribution.cumulative():
                family.add_sample(f"{name}_bucket", {**labelled, "le": bound}, count)
            family.add_sample(f"{name}_sum", labelled, distribution.total)
            family.add_sample(f"{name}_count", labelled, distribution.count)
        return family


def _sleep_state(engine: EngineNumbers) -> str:
    statistics = engine.statistics
    return ("awake", "weights_offloaded", "discard_all")[statistics.sleep_level if statistics.asleep else 0]
