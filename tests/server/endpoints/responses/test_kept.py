"""Responses with `background`: queued, looked up, cancelled."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.fakes import GatedRunner
from tests.fronts import make_engine
from tests.server.rig import Live, live

BASE = {"input": "Hi", "max_output_tokens": 9, "temperature": 0}


def start(server: Live, **fields: Any) -> dict[str, Any]:
    response = server.post("/v1/responses", **{**BASE, "background": True, **fields})
    assert response.status_code == 200, response.text
    started: dict[str, Any] = response.json()
    return started


def find(server: Live, response_id: str) -> dict[str, Any]:
    found: dict[str, Any] = server.http.get(f"/v1/responses/{response_id}").json()
    return found


def ended(server: Live, response_id: str) -> dict[str, Any]:
    """The response when it runs no more."""
    deadline = time.monotonic() + 20
    while (found := find(server, response_id))["status"] in ("queued", "in_progress"):
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.005)
    return found


def test_it_is_queued_at_once_and_becomes_what_one_that_is_waited_for_is() -> None:
    with live(make_engine(runner=GatedRunner)) as server:
        started = start(server)
        assert (started["status"], started["background"], started["output"]) == ("queued", True, [])
        assert find(server, started["id"])["status"] == "queued"
        server.runner.open()
        found = ended(server, started["id"])
        waited = server.post("/v1/responses", **BASE).json()
        assert found["output"][0]["content"] == waited["output"][0]["content"]
        assert (found["status"], found["usage"]["output_tokens"]) == (waited["status"], 9)
        assert server.http.get(f"/v1/responses/{found['id']}/input_items").json()["data"]
        server.post("/v1/responses", **BASE, previous_response_id=found["id"]).raise_for_status()
        server.http.post(f"/v1/responses/{found['id']}/cancel").raise_for_status()
        assert find(server, found["id"]) == found


@pytest.mark.parametrize("forget", [False, True])
def test_one_that_is_cancelled_or_forgotten_frees_its_place(forget: bool) -> None:
    with live(make_engine(runner=GatedRunner)) as server:
        response_id = start(server)["id"]
        if forget:
            assert server.http.delete(f"/v1/responses/{response_id}").json()["deleted"] is True
            assert server.http.get(f"/v1/responses/{response_id}").status_code == 404
        else:
            cancelled = server.http.post(f"/v1/responses/{response_id}/cancel").json()
            assert cancelled["status"] == "cancelled"
            assert find(server, response_id) == cancelled
        server.runner.open()
        server.settle()
        assert server.http.get(f"/v1/responses/{response_id}").status_code == (404 if forget else 200)


def test_one_that_fails_says_why() -> None:
    with live(make_engine(runner=GatedRunner), request_timeout=0.2) as server:
        found = ended(server, start(server)["id"])
    assert found["status"] == "failed"
    assert "longest that this server allows" in found["error"]["message"]


def test_what_runs_ends_with_the_server() -> None:
    with live(make_engine(runner=GatedRunner)) as server:
        start(server)


def test_one_that_is_streamed_is_refused() -> None:
    with live() as server:
        response = server.post("/v1/responses", **BASE, background=True, stream=True)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "background"
