"""Attacks on the key (groups B2, B4, B6): every route but health is closed, however its path is written."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from fastapi.routing import APIRoute

from jaxengine.server.app import ENDPOINTS
from tests.robustness.sockets import connection, read_all, status_of
from tests.server.rig import Live, live

OPEN = {"/health", "/ping"}
TARGETS = (
    *(
        "/",
        "//",
        "//health",
        "/health/",
        "/health/../metrics",
        "/health/..%2fmetrics",
        "/Health",
        "/health%00",
        "/health;x",
    ),
    *("/v1/models", "//v1/models", "/v1/%6dodels", "/v1%2fmodels", "/V1/models", "/v1/models/", "/v1/models?a=/health"),
    *(
        "/v1/models#/health",
        "http://x/health/../v1/models",
        "/docs",
        "/redoc",
        "/openapi.json",
        "/metrics",
        "*",
        "/nowhere",
    ),
)
KEYS = {
    "none": "",
    "empty": "Authorization: \r\n",
    "no scheme": "Authorization: secret-key\r\n",
    "basic": "Authorization: Basic secret-key\r\n",
    "almost": "Authorization: Bearer secret-ke\r\n",
    "and more": "Authorization: Bearer secret-keyy\r\n",
    "in capitals": "Authorization: Bearer SECRET-KEY\r\n",
    "two of them": "Authorization: Bearer secret-key\r\nAuthorization: Bearer secret-key\r\n",
    "a list": "Authorization: Bearer x, Bearer secret-key\r\n",
    "no ASCII": "Authorization: Bearer s\xe9cret-key\r\n",
    "another header": "X-Key: secret-key\r\n",
}


@pytest.fixture(scope="module")
def closed() -> Iterator[Live]:
    """A server with a key for everything."""
    with live(api_key=("other", "secret-key"), api_key_scope="all") as server:
        yield server


def routes() -> list[tuple[str, str]]:
    """Method and path of every route that there is."""
    found = [route for endpoint in ENDPOINTS for route in endpoint.router.routes if isinstance(route, APIRoute)]
    return [(method, route.path) for route in found for method in sorted(route.methods)]


def test_every_route_but_health_needs_the_key(closed: Live) -> None:
    tried = routes()
    assert ("POST", "/v1/responses") in tried
    assert ("GET", "/metrics") in tried
    for method, path in tried:
        status = closed.http.request(method, path.replace("{", "").replace("}", ""), content=b"{}").status_code
        assert (status != 401) == (path in OPEN), f"{method} {path} answered {status} without a key"


@pytest.mark.parametrize("target", TARGETS)
def test_no_way_of_writing_a_path_opens_it(target: str, closed: Live) -> None:
    port = httpx.URL(closed.url).port
    assert port is not None
    with connection(port) as raw:
        raw.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = read_all(raw)
    assert status_of(answer) in (400, 401), answer[:200]


@pytest.mark.parametrize("form", KEYS)
def test_what_is_not_the_key(form: str, closed: Live) -> None:
    port = httpx.URL(closed.url).port
    assert port is not None
    with connection(port) as raw:
        head = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{KEYS[form]}Connection: close\r\n\r\n"
        raw.sendall(head.encode("latin-1"))
        answer = read_all(raw)
    assert status_of(answer) == 401
    assert b"secret" not in answer


def test_each_key_opens(closed: Live) -> None:
    for key in ("other", "secret-key"):
        assert closed.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
