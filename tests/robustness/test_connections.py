"""Attacks through the connection (groups B9, B3, B4, B5, F9): lies about length, endless headers, idle crowds, odd targets."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import httpx
import pytest

from tests.quick import slow_but
from tests.robustness.loopback import Loopback
from tests.robustness.sockets import connection, post_bytes, read_all, status_of

BODY = {"prompt": "a", "max_tokens": 2}
CLOSE = b"Connection: close\r\n\r\n"

RAW: dict[str, bytes] = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    "an unknown method": b"HACK / HTTP/1.1\r\nHost: localhost\r\n" + CLOSE,
    "a negative length": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n" + CLOSE,
    "two lengths": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n"
    + CLOSE,
    "a length that is no number": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n" + CLOSE,
    "a length beyond 64 bits": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n"
    + CLOSE,
    "a chunk that is no number": (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
    ),
    "length and chunks (smuggling)": (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ),
    "a header with a null byte": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: a\x00b\r\n" + CLOSE,
    "a header line folded": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: a\r\n b\r\n" + CLOSE,
    "a target without end": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n" + CLOSE,
    "a header of a megabyte": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-A: "
    + b"a" * (1 << 20)
    + b"\r\n"
    + CLOSE,
    "a hundred thousand headers": (
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(100_000)) + CLOSE
    ),
}


@pytest.mark.parametrize("attack", RAW)
def test_what_is_no_decent_http(attack: str, server: Loopback, client: httpx.Client) -> None:
    with connection(server.port) as raw:
        try:
            raw.sendall(RAW[attack])
            raw.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it hung up while we were still sending
        answer = read_all(raw)
    assert 400 <= status_of(answer) < 500 or not answer, answer[:300]


def test_headers_without_end_are_not_collected(server: Loopback, client: httpx.Client) -> None:
    sent = 0
    with connection(server.port) as raw:
        raw.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n")
        try:
            while sent < 64 << 20:
                raw.sendall(b"X-A: " + b"a" * 65000 + b"\r\n")
                sent += 65007
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 32 << 20, "the server took 64 MiB of headers"


def test_a_crowd_that_only_stands_there(server: Loopback, client: httpx.Client) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(connection(server.port)) for _ in range(300)]
        for number, raw in enumerate(crowd):
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le"[: number % 60])
        assert client.post("/v1/completions", json=BODY).status_code == 200


def test_a_body_that_never_comes(server: Loopback, client: httpx.Client) -> None:
    with ExitStack() as stack:
        for _ in range(50):
            raw = stack.enter_context(connection(server.port))
            raw.sendall(post_bytes("/v1/completions", BODY, length=100_000))
        assert client.post("/v1/completions", json=BODY).status_code == 200
        assert server.service.engine.num_open <= 16, "a request without its body is no request of the engine's"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:1@x", "a" * 3000, "x/../..", "[::1", "\xff"])
def test_hosts_that_pretend(host: str, server: Loopback, client: httpx.Client) -> None:
    with connection(server.port) as raw:
        raw.sendall(b"GET /v1/models HTTP/1.1\r\nHost: " + host.encode("latin-1") + b"\r\nConnection: close\r\n\r\n")
        answer = read_all(raw)
    assert status_of(answer) in (400, 403)
    assert b"evil" not in answer


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
@pytest.mark.parametrize(
    "path",
    slow_but(
        ["/health", "/metrics", "/v1/completions", "/reset_prefix_cache", "/docs", "/nowhere"],
        ["/v1/completions", "/nowhere"],
    ),
)
def test_a_page_that_resolves_to_this_machine_reaches_nothing(path: str, method: str, client: httpx.Client) -> None:
    port = client.base_url.port
    for headers in (
        {"Host": f"evil.example:{port}"},
        {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{port + 1}"},
    ):
        assert client.request(method, path, headers=headers).status_code == 403


@pytest.mark.parametrize("target", ["/v1/models/", "/v1/responses/", "/health/", "/v1/completions/"])
def test_nobody_is_sent_elsewhere(target: str, server: Loopback, client: httpx.Client) -> None:
    answer = client.get(target)
    assert answer.status_code in (404, 405)
    assert "location" not in answer.headers


def test_methods_that_no_route_has(client: httpx.Client) -> None:
    for method in ("PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "CONNECT"):
        assert client.request(method, "/v1/completions").status_code in (400, 404, 405)
