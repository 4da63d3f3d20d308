"""/metrics over HTTP: what real requests leave there, in both text formats, and what disconnects return."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes import GatedRunner
from tests.fronts import make_engine
from tests.robustness.loopback import until
from tests.robustness.sockets import connection, post_bytes
from tests.server.rig import Live, live


@pytest.fixture
def fresh() -> Iterator[Live]:
    """A server that nobody has asked anything yet."""
    with live() as server:
        yield server


def scraped(server: Live) -> dict[str, float]:
    """Samples by name and the labels that are not the same for all."""
    values = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            own = [value for name, value in sorted(sample.labels.items()) if name not in ("model_name", "engine")]
            values[" ".join([sample.name.removeprefix("vllm:"), *own])] = sample.value
    return values


@pytest.mark.parametrize("stream", [False, True])
def test_the_equations_over_http(fresh: Live, stream: bool) -> None:
    requests, prompt, tokens = 4, 10, 6
    for number in range(requests):
        body = {"prompt": list(range(number + 1, number + 1 + prompt)), "max_tokens": tokens, "ignore_eos": True}
        if stream:
            fresh.events("/v1/completions", **body)
        else:
            fresh.post("/v1/completions", **body)
    seen = scraped(fresh)
    assert seen["time_to_first_token_seconds_count"] == requests
    assert seen["inter_token_latency_seconds_count"] == requests * (tokens - 1)
    assert seen["prompt_tokens_total"] == seen["request_prompt_tokens_sum"] == requests * prompt
    assert seen["generation_tokens_total"] == seen["request_generation_tokens_sum"] == requests * tokens
    assert seen["request_params_max_tokens_sum"] == requests * tokens
    assert seen["iteration_tokens_total_sum"] == requests * (prompt + tokens)
    assert seen["iteration_tokens_total_count"] == requests * tokens
    assert seen["request_success_total length"] == requests
    assert seen["http_requests_total /v1/completions POST 2xx"] == requests


def test_refused_requests_are_http_requests_and_no_more(fresh: Live) -> None:
    fresh.post("/v1/completions", prompt="a", temperature=-1)
    seen = scraped(fresh)
    assert seen["http_requests_total /v1/completions POST 4xx"] == 1
    assert seen["prompt_tokens_total"] == seen["time_to_first_token_seconds_count"] == 0


def test_gauges_return_to_zero_when_clients_go() -> None:
    with live(make_engine(runner=GatedRunner, max_num_seqs=2)) as server:
        with ExitStack() as stack:
            for number in range(4):
                raw = stack.enter_context(connection(int(server.url.rpartition(":")[2])))
                raw.sendall(post_bytes("/v1/completions", {"prompt": "a", "max_tokens": 50}))
                until(lambda number=number: server.service.engine.num_open == number + 1, "it is in")
        server.runner.open()
        deadline = time.monotonic() + 10
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        while any((seen := scraped(server))[name] for name in names):
            assert time.monotonic() < deadline, seen
        assert seen["request_success_total abort"] == 4


def test_rejections_are_counted() -> None:
    with live(make_engine(runner=GatedRunner, max_num_seqs=1), max_num_queued_reqs=2) as server:
        statuses = [server.post("/v1/completions", prompt=["a"] * 5, max_tokens=2).status_code for _ in range(3)]
        server.runner.open()
        assert statuses == [503] * 3
        assert scraped(server)["admission_rejections_total requests"] == 3


def test_the_scraper_chooses_the_format(fresh: Live) -> None:
    plain = fresh.http.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    modern = fresh.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(modern.text)}
    assert {"vllm:prompt_tokens", "jaxengine:host_gap_seconds", "http_request_duration_seconds"} <= names


def test_it_is_no_part_of_the_api(fresh: Live) -> None:
    assert "/metrics" not in fresh.http.get("/openapi.json").json()["paths"]
