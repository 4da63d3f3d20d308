"""Bounds on what comes before a request is one."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from jaxengine.server.http.protocol import BoundedProtocol
from jaxengine.server.launch import uvicorn_config
from tests.server.rig import Live

HEAD = b"GET /version HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def raw(server: Live, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A connection to a server that waits a second for a request."""
    monkeypatch.setattr(BoundedProtocol, "receive_timeout_s", 1.0)
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        yield connection


def read_to_end(raw: socket.socket) -> bytes:
    received = b""
    with raw:
        while piece := raw.recv(65536):
            received += piece
    return received


def test_the_server_uses_it(server: Live) -> None:
    assert uvicorn_config(server.app, server.service.options).http is BoundedProtocol


@pytest.mark.parametrize("said", [b"", HEAD, b"POST /tokenize HTTP/1.1\r\nContent-Length: 10\r\n\r\n{"], ids=len)
def test_who_does_not_finish_a_request_is_hung_up_on(raw: socket.socket, said: bytes) -> None:
    raw.sendall(said)
    assert b" 200 " not in read_to_end(raw)


def test_a_finished_request_has_all_the_time(raw: socket.socket) -> None:
    raw.sendall(HEAD + b"\r\n")
    raw.sendall(HEAD + b"Connection: close\r\n\r\n")
    assert read_to_end(raw).count(b"200 OK") == 2


def test_headers_are_bounded_and_ordinary_ones_pass(raw: socket.socket) -> None:
    raw.sendall(HEAD + b"X-A: " + b"a" * 30_000 + b"\r\n\r\n")
    assert raw.recv(65536).startswith(b"HTTP/1.1 200")
    with pytest.raises((BrokenPipeError, ConnectionResetError)):  # noqa: PT012 the socket's buffers take a while to fill
        raw.sendall(HEAD)
        for _ in range(2000):
            raw.sendall(b"X-A: " + b"a" * 30_000 + b"\r\n")
    raw.close()


async def ok(scope: Any, receive: Any, send: Any) -> None:
    """An app that answers everything."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize("comes", [True, False])
def test_a_request_that_a_busy_loop_has_not_read_yet_is_answered(comes: bool) -> None:
    async def answers() -> tuple[bytes, bytes]:
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(ok, http=BoundedProtocol, lifespan="off")
        config.timeout_keep_alive = 0.05  # type: ignore[assignment]
        config.load()
        state = ServerState()
        server = await loop.create_server(lambda: BoundedProtocol(config, state, {}), "127.0.0.1", 0)
        request = HEAD + b"\r\n"
        with socket.create_connection(server.sockets[0].getsockname()) as connection:
            connection.setblocking(False)
            await loop.sock_sendall(connection, request)
            first = await loop.sock_recv(connection, 65536)
            time.sleep(0.1)  # the loop's next turn finds that nothing has come in time, and then something comes
            if comes:
                loop.call_soon(connection.sendall, request)
            second = await loop.sock_recv(connection, 65536)
        server.close()
        while state.connections:
            await asyncio.sleep(0.001)
        return first, second

    first, second = asyncio.run(answers())
    assert first.startswith(b"HTTP/1.1 200")
    assert second.startswith(b"HTTP/1.1 200") == comes
