"""The proxy between engines that compute prompts and engines that generate, before servers that are made up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from examples.disaggregated.proxy import HAND_OVER, make_app

PREFILL, DECODE, OTHER = "http://prefill", "http://decode", "http://other"
WHERE = {"do_remote_prefill": True, "do_remote_decode": False, "remote_host": "127.0.0.1", "remote_port": 9}


class World:
    """Servers that answer as they are told, and what they were asked."""

    def __init__(self, **answers: Callable[[], httpx.Response]) -> None:
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.answers = {
            "prefill": lambda: httpx.Response(200, json={"kv_transfer_params": WHERE}),
            "decode": lambda: httpx.Response(200, json={"text": "of decode"}),
            "other": lambda: httpx.Response(200, json={"text": "of other"}),
            **answers,
        }

    def handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else {}
        self.asked.append((request.url.host, request.url.path, body))
        return self.answers[request.url.host]()

    def post(
        self, body: Any, *, path: str = "/v1/completions", times: int = 1, decode: tuple[str, ...] = (DECODE,)
    ) -> Any:
        """The last of so many answers."""
        app = make_app([PREFILL], decode, transport=httpx.MockTransport(self.handle))

        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://proxy") as client:
                for _ in range(times):
                    answer = await (client.get(path) if body is None else client.post(path, json=body))
                return answer

        return asyncio.run(ask())


def dead() -> httpx.Response:
    raise httpx.ConnectError("connection refused")


BODY = {"prompt": "Tom", "max_tokens": 20, "min_tokens": 5, "stream": True, "stream_options": {}, "n": 3, "seed": 4}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_one_request_becomes_two(path: str) -> None:
    world = World()
    body = {**BODY, "max_completion_tokens": 7}
    answer = world.post(body, path=path)
    assert (answer.status_code, answer.json()) == (200, {"text": "of decode"})
    [first, second] = world.asked
    asked = {"prompt": "Tom", "max_tokens": 1, "max_completion_tokens": 1, "stream": False, "seed": 4}
    assert first == ("prefill", path, {**asked, "kv_transfer_params": HAND_OVER})
    assert second == ("decode", path, {**body, "kv_transfer_params": WHERE})


@pytest.mark.parametrize(
    "prefill",
    [
        dead,
        lambda: httpx.Response(503),
        lambda: httpx.Response(400, json={"error": {}}),
        lambda: httpx.Response(200, content=b"no json"),
        lambda: httpx.Response(200, json=[]),
        lambda: httpx.Response(200, json={"kv_transfer_params": None}),
    ],
)
def test_without_an_engine_for_prompts_the_other_computes_them(prefill: Callable[[], httpx.Response]) -> None:
    world = World(prefill=prefill)
    assert world.post(BODY).json() == {"text": "of decode"}
    assert world.asked[-1] == ("decode", "/v1/completions", BODY)


def test_a_server_that_is_gone_is_not_asked_for_a_while() -> None:
    world = World(prefill=dead)
    assert world.post(BODY, times=5).status_code == 200
    assert [host for host, _, _ in world.asked] == ["prefill", *["decode"] * 5]


@pytest.mark.parametrize("first", [dead, lambda: httpx.Response(503)])
def test_another_engine_generates_where_one_does_not_answer(first: Callable[[], httpx.Response]) -> None:
    assert World(decode=first).post(BODY, decode=(DECODE, OTHER)).json() == {"text": "of other"}
    answer = World(decode=first, other=dead).post(BODY, decode=(DECODE, OTHER))
    assert answer.status_code == 503


def test_what_is_wrong_with_a_request_is_passed_on() -> None:
    wrong = {"error": {"message": "no such model"}}
    world = World(prefill=lambda: httpx.Response(404), decode=lambda: httpx.Response(404, json=wrong))
    answer = world.post(BODY)
    assert (answer.status_code, answer.json()) == (404, wrong)
    assert World().post([1]).status_code == 400


def test_health_is_that_of_the_engines_that_generate() -> None:
    answer = World(prefill=dead).post(None, path="/health")
    assert (answer.status_code, answer.json()) == (200, {"prefill": {PREFILL: False}, "decode": {DECODE: True}})
    assert World(decode=dead).post(None, path="/health").status_code == 503
    assert World().post(None, path="/v1/models").json() == {"text": "of decode"}
