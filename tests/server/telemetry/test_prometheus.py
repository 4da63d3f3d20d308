"""The exposition, on an engine without a model: the equations of vLLM's own test, names, labels, buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.metrics import EngineStatistics
from jaxengine.front.front import Front
from jaxengine.front.model_text import ModelText
from jaxengine.host.engine.core import EngineCore
from jaxengine.host.engine.host import EngineHost
from jaxengine.host.engine.thread import EngineThread
from jaxengine.options.config import EngineConfig
from jaxengine.server.telemetry.prometheus import TIERS, EngineCollector, make_registry
from jaxengine.server.telemetry.tally import EngineNumbers, Tally
from jaxengine.text.generation_config import GenerationDefaults
from tests.harness import VOCAB, Rig, make_request
from tests.host.engine.test_core import make_core
from tests.media_items import make_facts, showing

DASHBOARD_NAMES = """
e2e_request_latency_seconds_bucket e2e_request_latency_seconds_sum e2e_request_latency_seconds_count
time_to_first_token_seconds_bucket time_to_first_token_seconds_sum time_to_first_token_seconds_count
inter_token_latency_seconds_bucket inter_token_latency_seconds_sum inter_token_latency_seconds_count
request_time_per_output_token_seconds_bucket request_time_per_output_token_seconds_sum
request_time_per_output_token_seconds_count prompt_tokens_total generation_tokens_total num_requests_running
num_requests_waiting kv_cache_usage_perc request_prompt_tokens_bucket request_generation_tokens_bucket
request_success_total request_queue_time_seconds_sum request_prefill_time_seconds_sum request_decode_time_seconds_sum
request_max_num_generation_tokens_sum iteration_tokens_total_count
"""
"""What the three dashboards that vLLM ships ask for."""

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scraped:
    """One scrape, by name and the labels beside `model_name` and `engine`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(scrape(registry))}
        self.samples: Samples = {}
        for family in self.families.values():
            for sample in family.samples:
                own = {name: value for name, value in sample.labels.items() if name not in ("model_name", "engine")}
                self.samples[sample.name, frozenset(own.items())] = sample.value

    def __getitem__(self, name: str) -> float:
        return self.get(name)

    def get(self, name: str, **labels: str) -> float:
        return self.samples[f"vllm:{name}", frozenset(labels.items())]

    def own(self, name: str) -> dict[str, float]:
        """Samples of a metric of ours by their one label."""
        return {
            next(iter(labels))[1] if labels else "": value
            for (sample, labels), value in self.samples.items()
            if sample == f"jaxengine:{name}"
        }


def scrape(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def statistics(core: EngineCore) -> EngineStatistics:
    """As an engine with two programs tells them."""
    return EngineStatistics(scheduler=core.scheduler.stats, num_programs=2, tiers=core.tier_stats)


def make(
    rig: Rig, *, rejections: Mapping[str, int] | None = None, **options: Any
) -> tuple[EngineCore, CollectorRegistry]:
    core = make_core(rig)
    facts = EngineFacts(
        vocab_size=VOCAB,
        max_model_len=rig.max_model_len,
        page_size=rig.ledger.page_size,
        num_pages=rig.ledger.pools.num_pages,
        kv_tokens=rig.ledger.pools.tokens_held(
            page_size=rig.ledger.page_size, ahead=32, max_model_len=rig.max_model_len
        ),
        start_phases={"resolve": 0.5, "compile": 2.0},
    )
    front = Front.of(
        EngineConfig.from_options(num_pages=40, **options),
        EngineThread(EngineHost(core, facts)),
        ModelText(tokenizer=None, generation=GenerationDefaults()),
    )
    tally = Tally(max_model_len=rig.max_model_len)
    core.recorder.listen(tally)
    registry = make_registry(
        EngineCollector(
            front,
            model_name="tiny",
            engines=lambda: [EngineNumbers(0, statistics(core), tally)],
            rejections=lambda: rejections or {},
        )
    )
    return core, registry


def run(core: EngineCore) -> None:
    for _ in range(500):
        if not core.has_unfinished:
            return
        core.step()
    raise AssertionError("not done after 500 steps")


@pytest.mark.parametrize("prompt", [7, 30, 70], ids=["one step", "several rows", "chunked"])
def test_the_equations_of_requests_one_after_another(prompt: int) -> None:
    core, registry = make(Rig())
    requests, tokens = 5, 6
    for number in range(requests):
        core.add(make_request(f"r{number}", [number + i for i in range(prompt)], max_tokens=tokens))
        run(core)
    seen = Scraped(registry)
    assert seen["time_to_first_token_seconds_count"] == requests
    assert seen["inter_token_latency_seconds_count"] == requests * (tokens - 1)
    assert seen["time_per_output_token_seconds_count"] == requests * (tokens - 1)
    assert seen["prompt_tokens_total"] == requests * prompt
    assert seen["generation_tokens_total"] == requests * tokens
    assert seen["request_prompt_tokens_sum"] == requests * prompt
    assert seen["request_generation_tokens_sum"] == requests * tokens
    assert seen["request_params_max_tokens_sum"] == requests * tokens
    assert seen["iteration_tokens_total_sum"] == requests * (prompt + tokens)
    assert seen["iteration_tokens_total_count"] == requests * tokens
    assert seen.get("request_success_total", finished_reason="length") == requests
    assert seen["request_params_n_sum"] == seen["request_params_n_count"] == requests
    for name in ("e2e_request_latency", "request_queue_time", "request_inference_time", "request_decode_time"):
        assert seen[f"{name}_seconds_count"] == requests


def test_requests_that_run_together_count_the_same_tokens() -> None:
    core, registry = make(Rig())
    for number in range(9):
        core.add(make_request(f"r{number}", range(number, number + 11), max_tokens=4))
    run(core)
    seen = Scraped(registry)
    assert seen["iteration_tokens_total_sum"] == 9 * (11 + 4)
    assert seen["iteration_tokens_total_count"] < 9 * 4, "steps are shared"
    assert seen["inter_token_latency_seconds_count"] == 9 * 3


def test_prompt_tokens_by_source_add_up() -> None:
    core, registry = make(Rig())
    for name in ("a", "b"):
        core.add(make_request(name, range(10)))
        run(core)
    seen = Scraped(registry)
    computed = seen.get("prompt_tokens_by_source_total", source="local_compute")
    cached = seen.get("prompt_tokens_by_source_total", source="local_cache_hit")
    assert (computed, cached) == (12, 8)
    assert seen["prompt_tokens_cached_total"] == seen["prefix_cache_hits_total"] == 8
    assert seen["prefix_cache_queries_total"] == seen["prompt_tokens_total"] == 20
    assert seen["request_prefill_kv_computed_tokens_sum"] == 12


def test_pictures_that_were_encoded_already_are_counted() -> None:
    core, registry = make(Rig(media=make_facts()))
    for name in ("a", "b"):
        core.add(showing(make_request(name, ()), *range(3), ("cat", 4), ("cat", 4), ord(name)))
        run(core)
    seen = Scraped(registry)
    assert (seen["mm_cache_queries_total"], seen["mm_cache_hits_total"]) == (3, 1)


def test_prompt_tokens_that_came_from_the_host_are_told_apart() -> None:
    core, registry = make(Rig(num_pages=6, host_blocks=9))
    for start in (0, 40, 0):
        core.add(make_request(f"{start} {core.scheduler.stats.num_tokens}", range(start, start + 14), max_tokens=1))
        run(core)
    seen = Scraped(registry)
    cached = {source: seen.get("prompt_tokens_cached_by_source_total", source=source) for source in ("device", *TIERS)}
    assert cached == {"device": 4, "host": 8, "disk": 0, "p2p": 0}
    assert seen.get("prompt_tokens_by_source_total", source="local_cache_hit") == 12
    assert seen["prompt_tokens_cached_total"] == 12
    assert (seen["prefix_cache_hits_total"], seen["external_prefix_cache_hits_total"]) == (4, 8)
    assert seen["external_prefix_cache_queries_total"] == 42 - 4
    blocks = seen.own("host_blocks")
    assert blocks["cached"] + blocks["free"] == 9


def test_gauges_follow_the_engine_and_return_to_zero_after_an_abort() -> None:
    core, registry = make(Rig())
    for number in range(6):
        core.add(make_request(f"r{number}", range(8), max_tokens=20))
    core.step()
    busy = Scraped(registry)
    assert busy["num_requests_running"] + busy["num_requests_waiting"] == 6
    assert busy["num_requests_running"] > 0
    assert busy["num_requests_waiting"] == busy.get("num_requests_waiting_by_reason", reason="capacity") > 0
    assert 0 < busy["kv_cache_usage_perc"] <= 1
    for number in range(6):
        core.abort(f"r{number}")
    idle = Scraped(registry)
    assert idle["num_requests_running"] == idle["num_requests_waiting"] == idle["kv_cache_usage_perc"] == 0
    assert idle.get("request_success_total", finished_reason="abort") == 6
    assert idle["e2e_request_latency_seconds_count"] == 0


def test_every_name_of_the_dashboards_is_there_before_the_first_request() -> None:
    _, registry = make(Rig())
    names = {name for name, _ in Scraped(registry).samples}
    assert {f"vllm:{name}" for name in DASHBOARD_NAMES.split()} <= names


def test_all_engine_metrics_carry_the_model_and_the_engine() -> None:
    core, registry = make(Rig(), rejections={"requests": 2})
    core.add(make_request("a", range(5)))
    run(core)
    for family in Scraped(registry).families.values():
        if family.name.startswith(("vllm:", "jaxengine:")):
            for sample in family.samples:
                assert sample.labels["model_name"] == "tiny", sample
                assert sample.labels["engine"] == "0", sample


def test_types() -> None:
    _, registry = make(Rig())
    families = Scraped(registry).families
    assert families["vllm:iteration_tokens_total"].type == "histogram"
    assert families["vllm:prompt_tokens"].type == "counter"
    assert families["vllm:kv_cache_usage_perc"].type == "gauge"


def test_buckets_of_histograms() -> None:
    _, registry = make(Rig())
    bounds: dict[str, list[str]] = {}
    for family in Scraped(registry).families.values():
        bounds[family.name] = [sample.labels["le"] for sample in family.samples if "le" in sample.labels]
    assert bounds["vllm:time_to_first_token_seconds"][:3] == ["0.001", "0.005", "0.01"]
    assert bounds["vllm:time_to_first_token_seconds"][-2:] == ["2560.0", "+Inf"]
    assert len(bounds["vllm:e2e_request_latency_seconds"]) == 22
    assert len(bounds["vllm:inter_token_latency_seconds"]) == 20
    assert bounds["vllm:request_params_n"] == ["1.0", "2.0", "5.0", "10.0", "20.0", "+Inf"]
    assert bounds["vllm:request_prompt_tokens"] == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "+Inf"], "up to 96"


def test_the_cache_as_labels() -> None:
    _, registry = make(Rig())
    [info] = Scraped(registry).families["vllm:cache_config_info"].samples
    assert info.value == 1
    assert info.labels["block_size"] == "4"
    assert info.labels["kv_cache_size_tokens"] == "156"
    assert info.labels["kv_cache_max_concurrency"] == "1.62"
    assert info.labels["enable_prefix_caching"] == "True"


def test_our_own_metrics() -> None:
    rig = Rig()
    core, registry = make(rig, rejections={"tokens": 3})
    core.add(make_request("a", range(5), max_tokens=3))
    run(core)
    seen = Scraped(registry)
    assert seen.own("programs") == {"": 2}
    assert seen.own("compile_events_after_ready_total") == {"": 0}
    assert seen.own("startup_phase_seconds") == {"resolve": 0.5, "compile": 2.0}
    assert seen.own("computed_tokens_total") == {"4x2": 5, "1x1": 2}
    assert seen.own("padding_tokens_total") == {"4x2": 3, "1x1": 0}
    assert seen.own("step_time_seconds_count") == {"4x2": 1, "1x1": 2}
    assert seen.own("host_gap_seconds_count") == {"": 2}
    assert seen.get("admission_rejections_total", reason="tokens") == 3


def test_speculation_has_metrics_where_it_was_asked_for() -> None:
    _, registry = make(Rig())
    assert not [name for name, _ in Scraped(registry).samples if "spec_decode" in name]
    asked = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    config = EngineConfig.from_options(speculative_config=asked).scheduler
    core, registry = make(Rig(speculation=config.speculation), speculative_config=asked)

    def by_position() -> list[float]:
        seen = Scraped(registry)
        return [
            seen.get("spec_decode_num_accepted_tokens_per_pos_total", position=str(position)) for position in range(3)
        ]

    assert by_position() == [0, 0, 0]
    core.add(make_request("a", [1, 2, 3] * 8, max_tokens=40))
    run(core)
    seen = Scraped(registry)
    drafts, tokens = seen["spec_decode_num_drafts_total"], seen["spec_decode_num_draft_tokens_total"]
    assert 0 < drafts <= tokens <= 3 * drafts
    assert sum(by_position()) == seen["spec_decode_num_accepted_tokens_total"]


def test_the_process_is_described_too() -> None:
    _, registry = make(Rig())
    names = {name for name, _ in Scraped(registry).samples}
    assert {"process_resident_memory_bytes", "process_open_fds", "python_info"} <= names


def test_every_series_of_an_engine_bears_its_rank() -> None:
    core, registry = make(Rig())
    collector = next(each for each in registry._collector_to_names if isinstance(each, EngineCollector))
    (one,) = collector.engines()
    two = one._replace(rank=5, tally=Tally(max_model_len=96))
    core.add(make_request("a", range(10), max_tokens=3))
    run(core)
    both = EngineCollector(collector.front, "tiny", engines=lambda: [*collector.engines(), two], rejections=dict)
    counts: dict[tuple[str, str], float] = {}
    for family in both.collect():
        ranks = {sample.labels["engine"] for sample in family.samples}
        assert ranks <= {"0", "5"}
        counts |= {(sample.name, sample.labels["engine"]): sample.value for sample in family.samples}
    assert counts["vllm:generation_tokens_total", "0"] == 3
    assert counts["vllm:generation_tokens_total", "5"] == 0
    names = {name for name, _ in counts}
    by_shape = {
        name for name in names if name.startswith(("jaxengine:computed", "jaxengine:padding", "jaxengine:step_time"))
    }
    assert {name for name in names if (name, "5") not in counts} == by_shape, "those of shapes that never ran alone"


def test_a_request_whose_pages_come_from_elsewhere_is_counted_by_what_it_waits_for() -> None:
    config = {
        "kv_connector": "TcpConnector",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {"secret_env": "A"},
    }
    core, registry = make(Rig(host_blocks=20, delay_of=lambda: 3, outer={}), kv_transfer_config=config)
    core.add(make_request("first", range(1, 40), max_tokens=2))
    run(core)
    assert core.reset_prefix_cache(), "device and host forget, other engines do not"
    core.add(make_request("again", range(1, 40), max_tokens=2))
    stages = ("lookup", "load", "copy")
    met: list[str] = []
    while core.has_unfinished:
        core.step()
        seen = Scraped(registry)
        waiting = [stage for stage in stages if seen.get("num_requests_kv_fetch_by_stage", stage=stage)]
        assert len(waiting) <= 1
        deferred = seen.get("num_requests_waiting_by_reason", reason="deferred")
        assert deferred == len({"lookup", "load"}.intersection(waiting))
        assert seen["num_requests_waiting"] == deferred
        met += [stage for stage in waiting if stage not in met]
    assert met == list(stages)
    without = Scraped(make(Rig())[1])
    assert "vllm:num_requests_kv_fetch_by_stage" not in without.families
