"""ORCA's load report, in the headers of answers to those who ask for it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.server.rig import Live, live


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as server:
        yield server


def report(server: Live, path: str, form: str | None) -> str | None:
    asked = {} if form is None else {"endpoint-load-metrics-format": form}
    prompt = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    response = server.http.post(path, json={**prompt, "max_tokens": 2}, headers=asked)
    assert response.status_code == 200
    told: str | None = response.headers.get("endpoint-load-metrics")
    return told


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_load_is_told_in_the_form_that_is_asked_for(server: Live, path: str) -> None:
    text = report(server, path, "TEXT")
    assert text == "TEXT named_metrics.kv_cache_usage_perc=0.0, named_metrics.num_requests_waiting=0.0"
    form, _, load = (report(server, path, "json") or "").partition(" ")
    assert (form, json.loads(load)) == (
        "JSON",
        {"named_metrics": {"kv_cache_usage_perc": 0.0, "num_requests_waiting": 0.0}},
    )


@pytest.mark.parametrize("form", [None, "BIN"])
def test_nothing_is_told_to_others(server: Live, form: str | None) -> None:
    assert report(server, "/v1/completions", form) is None
