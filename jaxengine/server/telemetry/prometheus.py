"""Prometheus metrics under vLLM's names, types, labels and buckets, so that its dashboards work; ours begin with `jaxengine:`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, get_args

from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client.registry import Collector
from prometheus_fastapi_instrumentator import Instrumentator

from jaxengine.contract.messages import Cause
from jaxengine.server.telemetry.families import Families, Row, by, plain
from jaxengine.server.telemetry.tally import DISTRIBUTIONS, Distribution, EngineNumbers

if TYPE_CHECKING:
    from fastapi import FastAPI

    from buckets import Bucket
    from jaxengine.contract.metrics import EngineCondition, SchedulerStats
    from jaxengine.front.front import Front

T = TypeVar("T")

UNCOUNTED = ("/metrics", "/health", "/load", "/ping", "/version", "/dashboard/stream")
"""Paths that neither the HTTP metrics nor `/load` count."""

TIERS = ("host", "disk", "p2p")
"""Where pages come from that the device does not have: this host's memory, files, another engine."""

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")

SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
"""By the level of sleep."""

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
DRAFTS: Mapping[str, tuple[str, Callable[[EngineNumbers], int]]] = {
    "num_drafts": ("Drafts that were checked.", lambda engine: engine.tally.num_drafts),
    "num_draft_tokens": ("Tokens of drafts.", lambda engine: engine.tally.num_draft_tokens),
    "num_accepted_tokens": ("Tokens of drafts that were right.", lambda engine: engine.tally.num_accepted_tokens),
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

    @property
    def families(self) -> Families:
        """Makes families with the labels of this model."""
        return Families(self.model_name)

    def collect(self) -> Iterator[Metric]:
        """All families, of one moment."""
        engines = self.engines()
        yield from self._gauges(engines)
        yield from self._settings(engines)
        yield from self._counters(engines)
        yield from self._speculation(engines)
        yield from self._histograms(engines)
        yield from self._programs(engines)
        yield from self._steps(engines)
        yield from self._tiers(engines)
        yield from self._lives(engines)

    def _gauges(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        gauge = self.families.gauge
        for name, (text, value) in GAUGES.items():
            yield gauge(f"vllm:{name}", text, [(each.rank, {}, value(each.scheduler)) for each in engines])
        yield gauge(
            "vllm:num_requests_waiting_by_reason",
            "Sequences that wait, by reason.",
            by("reason", engines, _waiting_by_reason),
        )
        if self.front.config.cache.kv_transfer_config:  # or else vLLM has none of these either
            yield gauge(
                "vllm:num_requests_kv_fetch_by_stage",
                "Sequences that wait for pages from elsewhere: whether they are there, for them to come, to be copied.",
                by(
                    "stage",
                    engines,
                    lambda each: {
                        "lookup": each.scheduler.num_asking,
                        "load": each.scheduler.num_loading,
                        "copy": each.scheduler.num_arriving,
                    },
                ),
            )
        yield gauge(
            "vllm:engine_sleep_state",
            "1 for the state the engine is in.",
            by(
                "sleep_state",
                engines,
                lambda each: {state: float(state == _sleep_state(each)) for state in SLEEP_STATES},
            ),
        )

    def _settings(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        """What is told by labels, of adapters and of the cache."""
        gauge = self.families.gauge
        if (adapters := self.front.intake.facts.adapters) is not None:  # or else vLLM has none of these either
            yield gauge(
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
        yield gauge("vllm:cache_config_info", "The KV cache, as labels.", [(each.rank, cache, 1) for each in engines])

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

    def _counters(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        counter = self.families.counter
        for name, (text, value) in COUNTERS.items():
            yield counter(f"vllm:{name}", text, plain(engines, value))
        yield counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their keys and values came from.",
            by("source", engines, _prompt_by_source),
        )
        yield counter(
            "vllm:prompt_tokens_cached_by_source",
            "Cached prompt tokens by where they were.",
            by("source", engines, _cached_by_source),
        )
        yield counter(
            "vllm:request_success",
            "Sequences that ended, by reason.",
            by(
                "finished_reason", engines, lambda each: {reason: each.tally.ended[reason] for reason in FINISH_REASONS}
            ),
        )
        yield counter(
            "vllm:admission_rejections",
            "Submissions refused, by reason, before any engine had them.",
            by("reason", engines[:1], lambda _: self.rejections()),
        )

    def _speculation(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        speculation = self.front.config.scheduler.speculation
        if speculation is None:  # then vLLM has none of these either
            return
        num_tokens, counter = speculation.num_tokens, self.families.counter
        for name, (text, value) in DRAFTS.items():
            yield counter(f"vllm:spec_decode_{name}", text, plain(engines, value))
        yield counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Tokens of drafts that were right, by their position in the draft.",
            by("position", engines, lambda each: {str(at): each.tally.accepted_at[at] for at in range(num_tokens)}),
        )

    def _histograms(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        for name, measure in DISTRIBUTIONS.items():
            rows: list[Row[Distribution]] = [(each.rank, {}, each.tally.distributions[name]) for each in engines]
            yield self.families.histogram(f"vllm:{name}", measure.about, rows)
            if former := FORMER_NAMES.get(name):
                yield self.families.histogram(f"vllm:{former}", f"Former name of {name}.", rows)

    def _programs(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        yield self.families.gauge(
            "jaxengine:programs", "Compiled programs.", plain(engines, lambda each: each.statistics.num_programs)
        )
        yield self.families.counter(
            "jaxengine:compile_events_after_ready",
            "Compilations since the engine was ready; 0 is the promise.",
            plain(engines, lambda each: each.statistics.num_compilations),
        )
        yield self.families.gauge(
            "jaxengine:startup_phase_seconds",
            "Seconds that each phase of the start took.",
            by("phase", engines, lambda _: self.front.channel.facts.start_phases),
        )

    def _steps(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        yield self.families.counter(
            "jaxengine:computed_tokens",
            "Real tokens computed, by step shape.",
            by("shape", engines, lambda each: _by_name(each.tally.computed_tokens)),
        )
        yield self.families.counter(
            "jaxengine:padding_tokens",
            "Token places computed beyond the real tokens, by step shape.",
            by("shape", engines, lambda each: _by_name(each.tally.padding_tokens)),
        )
        yield self.families.histogram(
            "jaxengine:step_time_seconds",
            "From the launch of a step, or the result of the one before if later, to its result on the host, by step shape.",
            by("shape", engines, lambda each: _by_name(each.tally.step_times)),
        )
        yield self.families.histogram(
            "jaxengine:host_gap_seconds",
            "From the result of a step to the launch of the next, while there is work; 0 where that was launched before.",
            plain(engines, lambda each: each.tally.host_gaps),
        )

    def _tiers(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        yield self.families.gauge(
            "jaxengine:host_blocks",
            "Pages of the KV cache that the host's memory has room for, by state.",
            by("state", engines, _host_blocks),
        )
        yield self.families.counter(
            "jaxengine:kv_pages_dropped",
            "Pages that the device gave up without a copy on the host, because too many left at once.",
            plain(engines, lambda each: each.statistics.tiers.num_dropped_pages),
        )
        yield self.families.counter(
            "jaxengine:kv_transfer_bytes",
            "Bytes of KV pages that moved between tiers, by way.",
            by("way", engines, lambda each: {way: moved.bytes for way, moved in each.statistics.tiers.traffic.items()}),
        )
        yield self.families.counter(
            "jaxengine:kv_transfer_seconds",
            "Seconds for which KV pages moved between tiers, by way.",
            by(
                "way",
                engines,
                lambda each: {way: moved.seconds for way, moved in each.statistics.tiers.traffic.items()},
            ),
        )

    def _lives(self, engines: Sequence[EngineNumbers]) -> Iterator[Metric]:
        """What engines have died of, and what became of their requests."""
        conditions = self.front.channel.condition.engines  # none where nobody supervises
        lives = [(numbers.rank, life) for numbers, life in zip(engines, conditions, strict=False)]
        for name, (text, value) in LIVES.items():
            yield self.families.counter(f"jaxengine:{name}", text, [(rank, {}, value(life)) for rank, life in lives])
        yield self.families.counter(
            "jaxengine:engine_deaths",
            "Engines that died, by cause.",
            [(rank, {"cause": cause}, life.deaths.get(cause, 0)) for rank, life in lives for cause in get_args(Cause)],
        )


def _waiting_by_reason(engine: EngineNumbers) -> dict[str, float]:
    stats = engine.scheduler
    deferred = stats.num_asking + stats.num_loading
    return {"capacity": stats.num_waiting - deferred, "deferred": deferred}


def _prompt_by_source(engine: EngineNumbers) -> dict[str, float]:
    tally = engine.tally
    transferred = tally.cached_from["p2p"]
    return {
        "local_compute": tally.prompt_tokens - tally.cached_tokens,
        "local_cache_hit": tally.cached_tokens - transferred,
        "external_kv_transfer": transferred,
    }


def _cached_by_source(engine: EngineNumbers) -> dict[str, float]:
    tally = engine.tally
    of_tiers = {tier: tally.cached_from[tier] for tier in TIERS}
    return {"device": tally.cached_tokens - tally.cached_from.total(), **of_tiers}


def _host_blocks(engine: EngineNumbers) -> dict[str, float]:
    tiers = engine.statistics.tiers
    return {
        "cached": tiers.num_cached_blocks,
        "arriving": tiers.num_arriving_blocks,
        "free": tiers.num_free_blocks,
    }


def _sleep_state(engine: EngineNumbers) -> str:
    statistics = engine.statistics
    return SLEEP_STATES[statistics.sleep_level if statistics.asleep else 0]


def _by_name(of_shapes: Mapping[Bucket, T]) -> dict[str, T]:
    return {str(shape): value for shape, value in of_shapes.items()}
