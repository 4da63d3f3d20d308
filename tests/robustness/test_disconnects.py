"""Clients that go away at any moment (group F6), and slots that others then use (E2): pages come back within a step."""

from __future__ import annotations

import random
import socket
import struct
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import pytest

from tests.robustness.loopback import Loopback, until
from tests.robustness.neighbours import COUNT
from tests.robustness.sockets import connection, post_bytes

LONG = {"max_tokens": 480, "ignore_eos": True, "temperature": 0}
ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a cat", **LONG},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], **LONG, "max_tokens": 400},
    "/v1/responses": {"input": "hi", "ignore_eos": True, "max_output_tokens": 400},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, "max_tokens": 400},
}


def hang_up(raw: socket.socket) -> None:
    """Close with a reset, as a process that dies does."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


def until_gone(server: Loopback) -> None:
    """Only the neighbours are left."""
    until(lambda: server.service.engine.num_open <= COUNT, "requests of clients that have gone are aborted", seconds=5)


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ENDPOINTS)
def test_gone_at_once(path: str, stream: bool, reset: bool, server: Loopback, client: httpx.Client) -> None:
    for _ in range(8):
        with connection(server.port) as raw:
            raw.sendall(post_bytes(path, {**ENDPOINTS[path], "stream": stream}))
            if reset:
                hang_up(raw)
    until_gone(server)


@pytest.mark.slow
@pytest.mark.parametrize("path", ENDPOINTS)
def test_gone_after_a_few_tokens(path: str, server: Loopback, client: httpx.Client) -> None:
    with ExitStack() as stack:
        for _ in range(8):
            raw = stack.enter_context(connection(server.port))
            raw.sendall(post_bytes(path, {**ENDPOINTS[path], "stream": True}))
            received = b""
            while received.count(b"data:") < 3:
                received += raw.recv(4096)
    until_gone(server)


def test_gone_while_it_waits_for_a_whole_answer(server: Loopback, client: httpx.Client) -> None:
    with ExitStack() as stack:
        for _ in range(8):
            raw = stack.enter_context(connection(server.port))
            raw.sendall(post_bytes("/v1/completions", ENDPOINTS["/v1/completions"]))
        until(lambda: server.service.engine.num_open >= COUNT // 2 + 8, "they run")
    until_gone(server)


def test_gone_while_still_queued(server: Loopback, client: httpx.Client) -> None:
    with ExitStack() as stack:
        for _ in range(40):
            raw = stack.enter_context(connection(server.port))
            raw.sendall(post_bytes("/v1/completions", {**ENDPOINTS["/v1/completions"], "n": 2, "temperature": 1}))
        until(lambda: server.service.engine.statistics.scheduler.num_waiting >= 20, "some wait")
    until_gone(server)


def test_gone_in_the_middle_of_its_request(server: Loopback, client: httpx.Client) -> None:
    whole = post_bytes("/v1/completions", ENDPOINTS["/v1/completions"])
    for length in range(0, len(whole), 7):
        with connection(server.port) as raw:
            raw.sendall(whole[:length])
            hang_up(raw)
    until_gone(server)


def test_a_storm_of_aborts_leaves_the_slots_as_they_were(server: Loopback, client: httpx.Client) -> None:
    chance = random.Random(1)
    for _ in range(40):
        with ExitStack() as stack:
            for _ in range(chance.randint(1, 6)):
                raw = stack.enter_context(connection(server.port))
                fields = {"prompt": "x " * chance.randint(1, 300), "max_tokens": 100, "stream": chance.random() < 0.5}
                raw.sendall(post_bytes("/v1/completions", {**fields, "n": chance.randint(1, 3), "temperature": 1}))
            if chance.random() < 0.7:
                raw.settimeout(0.02)
                with suppress(TimeoutError):
                    raw.recv(100)
    until_gone(server)


@pytest.mark.slow
def test_one_that_stops_reading_holds_up_nobody(server: Loopback, client: httpx.Client) -> None:
    with connection(server.port) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        fields = {"prompt": "a cat", "max_tokens": 400, "n": 16, "temperature": 1, "logprobs": 5, "stream": True}
        raw.sendall(post_bytes("/v1/completions", fields))
        for _ in range(3):
            assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3}).status_code == 200
    until_gone(server)
