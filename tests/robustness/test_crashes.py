"""Engines that die under a server: whoever asks over HTTP, by whichever endpoint, gets what an engine that lives would answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from jaxengine.front.restarts import Supervision
from jaxengine.front.supervisor import Supervisor
from tests.front.mortal import Fate
from tests.server.rig import Live, live

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
GREEDY = {"temperature": 0, "max_tokens": 30}


@contextmanager
def mortal(fate: Fate, **options: Any) -> Iterator[Live]:
    """A server whose engines have this fate."""
    fate.options = {}
    fate.launch(0)
    [engine] = fate.engines
    supervisor = Supervisor([engine.front.channel], fate.launch, options=Supervision(silence_s=0.0, **options))
    engine.front = replace(engine.front, channel=supervisor)
    with live(engine, tool_call_parser="hermes") as server:
        yield server


def completion(server: Live) -> Any:
    choices = server.post("/v1/completions", prompt="ab", n=2, seed=3, max_tokens=30, logprobs=1).json()["choices"]
    return sorted(choices, key=lambda choice: choice["index"])


def streamed(server: Live) -> Any:
    *events, done = server.events("/v1/completions", prompt="abc", ignore_eos=True, **GREEDY)
    assert done == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def chat(server: Live) -> Any:
    return server.post("/v1/chat/completions", messages=MESSAGES, **GREEDY).json()["choices"]


def tool_call(server: Live) -> Any:
    body = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", **GREEDY}
    [choice] = server.post("/v1/chat/completions", **body).json()["choices"]
    return [call["function"] for call in choice["message"]["tool_calls"]]


def message(server: Live) -> Any:
    answer = server.post("/v1/messages", model="tiny", messages=MESSAGES, **GREEDY).json()
    return answer["content"], answer["stop_reason"]


def background(server: Live) -> Any:
    asked = {"model": "tiny", "input": "Hi", "temperature": 0, "max_output_tokens": 30, "background": True}
    kept = server.post("/v1/responses", **asked).json()
    deadline = time.monotonic() + 30
    while kept["status"] in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
        kept = server.http.get(f"/v1/responses/{kept['id']}").json()
    return kept["status"], [part["text"] for item in kept["output"] for part in item["content"]]


def embedding(server: Live) -> Any:
    return server.post("/v1/embeddings", input="ab").json()["data"]


ASKED: tuple[Callable[[Live], Any], ...] = (completion, streamed, chat, tool_call, message, background, embedding)


def test_every_endpoint_answers_as_if_no_engine_had_died() -> None:
    with mortal(Fate()) as server:
        right = [ask(server) for ask in ASKED]
    fate = Fate()
    with mortal(fate) as server:
        found = []
        for ask in ASKED:
            before = fate.steps
            striking = threading.Thread(target=strike, args=(fate, before + 2))
            striking.start()
            found.append(ask(server))
            striking.join()
        metrics = server.http.get("/metrics").text
    assert found == right
    assert len(fate.engines) >= len(ASKED) - 1
    restarts = len(fate.engines) - 1
    assert f'jaxengine:engine_restarts_total{{engine="0",model_name="tiny"}} {restarts:.1f}' in metrics
    assert f'jaxengine:engine_deaths_total{{cause="step",engine="0",model_name="tiny"}} {restarts:.1f}' in metrics


def strike(fate: Fate, step: int) -> None:
    """Kill the engine that has run so many steps, if any does in time."""
    deadline = time.monotonic() + 1
    while fate.steps < step and time.monotonic() < deadline:
        time.sleep(0.0005)
    if fate.steps >= step:
        fate.strike()


@pytest.mark.parametrize("resume", [True, False])
def test_a_request_may_ask_to_fail_at_once(resume: bool) -> None:
    fate = Fate(kills=lambda step: step == 5)
    with mortal(fate) as server:
        answer = server.post("/v1/completions", prompt="abc", resume=resume, ignore_eos=True, **GREEDY)
        if resume:
            assert answer.status_code == 200
        else:
            assert answer.status_code == 503
            assert "died (step); send it again" in answer.json()["error"]["message"]
        assert server.post("/v1/completions", prompt="abc", **GREEDY).status_code == 200


def test_a_request_that_kills_ends_with_a_clear_error() -> None:
    fate = Fate(kills=lambda step: True)
    with mortal(fate) as server:
        answer = server.post("/v1/completions", prompt="abc", **GREEDY)
        assert answer.status_code == 500
        assert "died each time it ran this request, the last time alone" in answer.json()["error"]["message"]
        assert len(fate.engines) in (3, 4), (
            "two deaths, one alone, and the engine that goes on, which may be about to start"
        )
