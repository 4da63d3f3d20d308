"""Clients that go away, streams that are silent, engines that die under way."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from jaxengine.contract.batch import Batch
from jaxengine.front.async_client import AsyncClient
from jaxengine.server.http.stream import EventStream
from jaxengine.text.detokenizer import Detokenizer
from tests.fakes import FakePending, FakeRunner, GatedRunner
from tests.fronts import make_engine
from tests.server.rig import Live, live

BODY = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "temperature": 0, "ignore_eos": True}


def settle(condition: Callable[[], bool]) -> None:
    """Wait for what other threads are about to do."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def send(server: Live, path: str, body: dict[str, Any], *, receive_bytes: int | None = None) -> socket.socket:
    """A request on a socket of its own, so that the connection can be cut; the kernel receives so much of the answer unread."""
    data = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.settimeout(20)
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.connect((host, int(port)))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def quiet(server: Live, *, num_open: int = 0) -> bool:
    stats = server.service.engine.statistics.scheduler
    return stats.num_running == stats.num_waiting == 0 and server.service.engine.num_open == num_open


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("steps", [0, 4])
def test_a_client_that_goes_away_frees_its_pages_within_a_step(path: str, streamed: bool, steps: int) -> None:
    with live(make_engine(runner=GatedRunner)) as server:
        engine = server.service.engine
        connection = send(server, path, {**(BODY if "chat" not in path else CHAT), "stream": streamed})
        settle(lambda: engine.num_open == 1)
        server.runner.allow(steps)
        settle(lambda: engine.statistics.num_steps == steps)
        connection.close()
        settle(lambda: engine.num_open == 0)
        server.runner.allow(1)  # the step that was under way
        settle(lambda: quiet(server))
        assert engine.statistics.num_steps <= steps + 1
        assert server.engine.ledger.pools.usage == 0
        server.runner.open()
        assert server.post("/v1/completions", **BODY).status_code == 200


def test_clients_that_go_away_while_they_wait_in_the_queue() -> None:
    with live(make_engine(runner=GatedRunner, max_num_seqs=2)) as server:
        engine = server.service.engine
        connections = []
        for number in range(10):  # one after the other: the first two are those that run
            connections.append(send(server, "/v1/completions", {**BODY, "stream": number % 2 == 0}))
            settle(lambda number=number: engine.num_open == number + 1)
        server.runner.allow(2)
        settle(lambda: engine.statistics.scheduler.num_waiting == 8)
        for connection in connections[2:]:
            connection.close()
        settle(lambda: engine.num_open == 2)
        server.runner.allow(1)
        settle(lambda: engine.statistics.scheduler.num_waiting == 0)
        assert engine.statistics.scheduler.num_running == 2
        server.runner.open()
        settle(lambda: quiet(server))
        for connection in connections[:2]:
            assert connection.recv(15).startswith(b"HTTP/1.1 200")
            connection.close()


def test_a_silent_stream_gets_comments() -> None:
    with live(make_engine(runner=GatedRunner), sse_keep_alive_interval=0.05) as server:
        connection = send(server, "/v1/completions", {**BODY, "stream": True})
        received = b""
        while received.count(b": keep-alive\n\n") < 3:
            received += connection.recv(1000)
        server.runner.open()
        while b"data: [DONE]" not in received:
            received += connection.recv(10_000)
        connection.close()


def test_a_stream_that_never_began_is_given_up_too() -> None:
    closed = []

    async def events() -> AsyncIterator[bytes]:
        yield b"data: never\n\n"

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await asyncio.sleep(60)  # the client reads nothing

    response = EventStream(events(), closing=lambda: closed.append(True), keep_alive_s=0)
    asyncio.run(response({"type": "http"}, receive, send))
    assert closed


class Dies(FakeRunner):
    """Fails in its sixth step."""

    def launch(self, batch: Batch) -> FakePending:
        if self.steps == 5:
            raise MemoryError("out of device memory")
        return super().launch(batch)


def test_an_engine_that_dies_ends_streams_with_an_error_event_and_health_says_so() -> None:
    with live(make_engine(runner=Dies)) as server:
        assert server.http.get("/health").status_code == 200
        *events, error, done = server.events("/v1/completions", **BODY)
        assert events
        assert done == "[DONE]"
        told = json.loads(error)["error"]
        assert (told["code"], told["type"]) == (503, "ServiceUnavailableError")
        assert "a step failed" in told["message"]
        assert "out of device memory" not in told["message"], "reasons are for the log"
        for response in (server.http.get("/health"), server.http.get("/ping"), server.post("/v1/completions", **BODY)):
            assert response.status_code == 503
            assert response.json()["error"]["type"] == "ServiceUnavailableError"


def test_a_deadline_ends_a_stream_with_an_error_event() -> None:
    with live(make_engine(runner=GatedRunner), request_timeout=0.2) as server:
        server.runner.allow(3)
        *_, error, done = server.events("/v1/completions", **BODY)
        assert (json.loads(error)["error"]["code"], done) == (504, "[DONE]")
        response = server.post("/v1/completions", **BODY)
        assert response.status_code == 504
        assert "within 0.2 s" in response.json()["error"]["message"]
        assert response.headers["x-should-retry"] == "false"


def test_a_full_queue_is_a_503_that_says_when_to_try_again() -> None:
    with live(make_engine(runner=GatedRunner, max_num_seqs=1), max_num_queued_reqs=1) as server:
        first = send(server, "/v1/completions", BODY)
        settle(lambda: server.service.engine.num_open == 1)
        server.runner.allow(1)
        settle(lambda: server.service.engine.statistics.scheduler.num_running == 1)
        second = send(server, "/v1/completions", BODY)
        settle(lambda: server.service.engine.num_open == 2)
        refused = server.post("/v1/completions", **BODY)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "1 requests are queued and at most 1" in refused.json()["error"]["message"]
        server.runner.open()
        settle(lambda: quiet(server))
        first.close()
        second.close()


def rests(engine: AsyncClient) -> bool:
    """Whether no step is made for a while: a socket takes in more, a little at a time, until it is full."""
    steps = engine.statistics.num_steps
    time.sleep(0.2)
    return engine.statistics.num_steps == steps


def test_a_client_that_does_not_read_is_paused_and_gets_the_same_bytes() -> None:
    body = {"prompt": "Once", "max_tokens": 1500, "temperature": 0, "ignore_eos": True, "logprobs": 5, "stream": True}
    with live(make_engine(max_len=2048, num_pages=600), max_unread_tokens=32) as server:
        expected = server.events("/v1/completions", **body)
        engine = server.service.engine
        before = engine.num_pauses
        connection = send(server, "/v1/completions", body, receive_bytes=4096)
        settle(lambda: engine.num_pauses > before and quiet(server, num_open=1) and rests(engine))
        steps = engine.statistics.num_steps
        assert server.post("/v1/completions", prompt="a", max_tokens=3).status_code == 200
        assert engine.statistics.num_steps < steps + 10, "nothing but the short one ran"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        received = b""
        while b"data: [DONE]" not in received:
            received += connection.recv(1 << 16)
        connection.close()
    lines = b"".join(_chunks(received.partition(b"\r\n\r\n")[2])).decode().splitlines()
    found = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert _whole(found) == _whole(expected)
    assert len(_whole(found)[1]) == body["max_tokens"]


def _whole(events: Sequence[str]) -> tuple[str, list[Any]]:
    """The text of a stream and what was told of each token, however many of them came at once."""
    *chunks, done = events
    assert done == "[DONE]"
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    tokens = [
        row
        for choice in choices
        for row in zip(*(choice["logprobs"][name] for name in ("text_offset", "token_logprobs", "tokens")), strict=True)
    ]
    return "".join(choice["text"] for choice in choices), tokens


def _chunks(body: bytes) -> Iterator[bytes]:
    """The content of a body in chunks, as far as it came."""
    while body:
        size, _, rest = body.partition(b"\r\n")
        yield rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]


def test_an_output_that_cannot_be_built_ends_its_own_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    push = Detokenizer.push
    chokes = True

    def choke(detokenizer: Detokenizer, ids: Sequence[int]) -> str:
        if chokes:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a token that is no text")
        return push(detokenizer, ids)

    monkeypatch.setattr(Detokenizer, "push", choke)
    with live() as server:
        failed = server.post("/v1/completions", **BODY)
        assert failed.status_code == 500
        assert "incident" in failed.json()["error"]["message"]
        assert "a token" not in failed.text
        chokes = False
        assert server.post("/v1/completions", **BODY).status_code == 200
