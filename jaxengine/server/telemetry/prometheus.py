"""Prometheus metrics under vLLM's names, types, labels and buckets, so that its dashboards work; ours begin with `jaxengine:`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partialmethod
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client.registry import Collector
from prometheus_fastapi_instrumentator import Instrumentator

from jaxengine.server.telemetry.tally import DISTRIBUTIONS, Distribution, Tally

if TYPE_CHECKING:
    from fastapi import FastAPI

    from jaxengine.contract.metrics import EngineStatistics, SchedulerStats
    from jaxengine.front.front import Front

UNCOUNTED = ("/metrics", "/health", "/load", "/ping", "/version")
"""Paths that neither the HTTP metrics nor `/load` count."""

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")

FORMER_NAMES = {"inter_token_latency_seconds": "time_per_output_token_seconds"}
"""Histograms that older dashboards know by another name."""

COUNTERS: Mapping[str, tuple[str, Callable[[SchedulerStats, Tally], int]]] = {
    "num_preemptions": ("Sequences that gave up their pages.", lambda stats, tally: stats.num_preemptions),
    "prompt_tokens": ("Prompt tokens, cached ones included.", lambda stats, tally: tally.prompt_tokens),
    "prompt_tokens_cached": ("Prompt tokens found in the KV cache.", lambda stats, tally: tally.cached_tokens),
    "generation_tokens": ("Generated tokens.", lambda stats, tally: tally.generated_tokens),
    "prefix_cache_queries": ("Tokens looked up in the prefix cache.", lambda stats, tally: stats.prefix_cache_queries),
    "prefix_cache_hits": ("Tokens found in the prefix cache.", lambda stats, tally: stats.prefix_cache_hits),
    "gpu_prefix_cache_queries": ("Former name of prefix_cache_queries.", lambda stats, _: stats.prefix_cache_queries),
    "gpu_prefix_cache_hits": ("Former name of prefix_cache_hits.", lambda stats, tally: stats.prefix_cache_hits),
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
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(collector)
    return registry


def count_http(app: FastAPI, registry: CollectorRegistry) -> None:
    """Add a layer to `app` that counts and times requests by handler, method and kind of status."""
    Instrumentator(excluded_handlers=[f"^{path}$" for path in UNCOUNTED], registry=registry).instrument(app)


@dataclass(frozen=True, eq=False)
class EngineCollector(Collector):
    """Makes the exposition's families from the numbers of the moment.

    Attributes:
        front: knows what the engine was built with.
        tally: listens to the engine.
        model_name: the label of all engine metrics.
        statistics: the engine's counts as of the last step.
        rejections: submissions refused so far, by reason.
    """

    front: Front
    tally: Tally
    model_name: str
    statistics: Callable[[], EngineStatistics]
    rejections: Callable[[], Mapping[str, int]]

    def collect(self) -> Iterator[Metric]:
        """All families, of one moment."""
        statistics = self.statistics()
        stats = statistics.scheduler
        yield from (*self._gauges(statistics), *self._counters(stats), *self._histograms(), *self._own(statistics))

    def _gauges(self, statistics: EngineStatistics) -> Iterator[Metric]:
        stats, now = statistics.scheduler, "weights_offloaded" if statistics.asleep else "awake"
        for name, (text, value) in GAUGES.items():
            yield self._gauge(f"vllm:{name}", text, [({}, value(stats))])
        yield self._gauge(
            "vllm:num_requests_waiting_by_reason",
            "Sequences that wait, by reason.",
            [({"reason": "capacity"}, stats.num_waiting), ({"reason": "deferred"}, 0)],
        )
        yield self._gauge(
            "vllm:engine_sleep_state",
            "1 for the state the engine is in.",
            [({"sleep_state": state}, float(state == now)) for state in ("awake", "weights_offloaded", "discard_all")],
        )
        yield self._gauge("vllm:cache_config_info", "The KV cache, as labels.", [(self._cache_config(), 1)])

    def _counters(self, stats: SchedulerStats) -> Iterator[Metric]:
        tally = self.tally
        for name, (text, value) in COUNTERS.items():
            yield self._counter(f"vllm:{name}", text, [({}, value(stats, tally))])
        yield self._counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their keys and values came from.",
            [
                ({"source": "local_compute"}, tally.prompt_tokens - tally.cached_tokens),
                ({"source": "local_cache_hit"}, tally.cached_tokens),
                ({"source": "external_kv_transfer"}, 0),
            ],
        )
        yield self._counter(
            "vllm:prompt_tokens_cached_by_source",
            "Cached prompt tokens by where they were.",
            [({"source": "device"}, tally.cached_tokens)],
        )
        yield self._counter(
            "vllm:request_success",
            "Sequences that ended, by reason.",
            [({"finished_reason": reason}, tally.ended[reason]) for reason in FINISH_REASONS],
        )
        yield self._counter(
            "vllm:admission_rejections",
            "Submissions refused, by reason.",
            [({"reason": reason}, count) for reason, count in self.rejections().items()],
        )
        speculation = self.front.config.scheduler.speculation
        if speculation is not None:  # or else vLLM has none of these either
            yield from self._speculation(speculation.num_tokens)

    def _speculation(self, num_tokens: int) -> Iterator[Metric]:
        tally = self.tally
        for name, text, value in (
            ("num_drafts", "Drafts that were checked.", tally.num_drafts),
            ("num_draft_tokens", "Tokens of drafts.", tally.num_draft_tokens),
            ("num_accepted_tokens", "Tokens of drafts that were right.", tally.num_accepted_tokens),
        ):
            yield self._counter(f"vllm:spec_decode_{name}", text, [({}, value)])
        yield self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Tokens of drafts that were right, by their position in the draft.",
            [({"position": str(position)}, tally.accepted_at[position]) for position in range(num_tokens)],
        )

    def _histograms(self) -> Iterator[Metric]:
        for name, distribution in self.tally.distributions.items():
            yield self._histogram(f"vllm:{name}", DISTRIBUTIONS[name].about, [({}, distribution)])
            if former := FORMER_NAMES.get(name):
                yield self._histogram(f"vllm:{former}", f"Former name of {name}.", [({}, distribution)])

    def _own(self, statistics: EngineStatistics) -> Iterator[Metric]:
        tally, facts = self.tally, self.front.channel.facts
        yield self._gauge("jaxengine:programs", "Compiled programs.", [({}, statistics.num_programs)])
        yield self._counter(
            "jaxengine:compile_events_after_ready",
            "Compilations since the engine was ready; 0 is the promise.",
            [({}, statistics.num_compilations)],
        )
        yield self._gauge(
            "jaxengine:startup_phase_seconds",
            "Seconds that each phase of the start took.",
            [({"phase": phase}, seconds) for phase, seconds in facts.start_phases.items()],
        )
        yield self._counter(
            "jaxengine:computed_tokens",
            "Real tokens computed, by step shape.",
            [({"shape": str(shape)}, count) for shape, count in tally.computed_tokens.items()],
        )
        yield self._counter(
            "jaxengine:padding_tokens",
            "Token places computed beyond the real tokens, by step shape.",
            [({"shape": str(shape)}, count) for shape, count in tally.padding_tokens.items()],
        )
        yield self._histogram(
            "jaxengine:step_time_seconds",
            "From the launch of a step, or the result of the one before if later, to its result on the host, by step shape.",
            [({"shape": str(shape)}, times) for shape, times in tally.step_times.items()],
        )
        yield self._histogram(
            "jaxengine:host_gap_seconds",
            "From the result of a step to the launch of the next, while there is work; 0 where that was launched before.",
            [({}, tally.host_gaps)],
        )

    def _cache_config(self) -> dict[str, str]:
        """Every option of the cache, the names that vLLM has for some of them, and what they came to."""
        config, facts = self.front.config.cache, self.front.channel.facts
        values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)} | {
            "page_size": facts.page_size,
            "block_size": facts.page_size,
            "num_pages": facts.num_pages,
            "num_gpu_blocks": facts.num_pages,
            "gpu_memory_utilization": config.memory_utilization,
            "kv_cache_size_tokens": facts.kv_tokens,
            "kv_cache_max_concurrency": f"{facts.kv_tokens / facts.max_model_len:.2f}",
        }
        return {name: str(value) for name, value in values.items()}

    def _family(self, kind: str, name: str, text: str, rows: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
        family = Metric(name, text, kind)
        for labels, value in rows:
            family.add_sample(f"{name}_total" if kind == "counter" else name, {**self._labels, **labels}, value)
        return family

    _gauge = partialmethod(_family, "gauge")
    _counter = partialmethod(_family, "counter")

    @property
    def _labels(self) -> Mapping[str, str]:
        return {"model_name": self.model_name, "engine": "0"}

    def _histogram(self, name: str, text: str, rows: Iterable[tuple[Mapping[str, str], Distribution]]) -> Metric:
        family = Metric(name, text, "histogram")
        for labels, distribution in rows:
            labelled = {**self._labels, **labels}
            for bound, count in distribution.cumulative():
                family.add_sample(f"{name}_bucket", {**labelled, "le": bound}, count)
            family.add_sample(f"{name}_sum", labelled, distribution.total)
            family.add_sample(f"{name}_count", labelled, distribution.count)
        return family
