"""Bounds on what comes before a request is one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

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
