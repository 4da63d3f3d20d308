"""Clients that do not keep to HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def connection(port: int, *, timeout: float = 20.0) -> Iterator[socket.socket]:
    """A raw connection to the server."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as raw:
        yield raw


def post_bytes(path: str, body: dict[str, Any], *, length: int | None = None) -> bytes:
    """A POST as it goes over the wire; `length` may lie about the body's."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content) if length is None else length}\r\n\r\n"
    )
    return head.encode() + content


def read_all(raw: socket.socket, *, most: int = 1 << 20) -> bytes:
    """What comes until the server closes."""
    received = b""
    try:
        while len(received) < most and (piece := raw.recv(65536)):
            received += piece
    except ConnectionResetError:
        pass
    return received


def status_of(answer: bytes) -> int:
    """The status of a raw answer; 0 when there is none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0
