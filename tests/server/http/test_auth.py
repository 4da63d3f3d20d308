"""API keys: what is not listed as open is closed without one, whatever the path or the Host header look like."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from fastapi.routing import APIRoute

from jaxengine.server.app import ENDPOINTS
from jaxengine.server.http.auth import OPEN_PATHS
from tests.server.rig import Live, live

BODY = {"prompt": "Tom", "max_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module")
def keyed() -> Iterator[Live]:
    with live(api_key=("one", "two"), api_key_scope="all") as server:
        yield server


def test_by_default_v1_is_closed_and_what_watches_a_server_is_open() -> None:
    with live(api_key=("one",)) as server:
        opened = {path for path in every_path() if server.http.request(*path).status_code != 401}
    assert {path for _, path in opened} == OPEN_PATHS["v1"]
    assert not [path for path in OPEN_PATHS["v1"] if path.startswith("/v1")]


def every_path() -> set[tuple[str, str]]:
    """Method and path of whatever there is, and of what there is not."""
    routes = [route for endpoint in ENDPOINTS for route in endpoint.router.routes if isinstance(route, APIRoute)]
    assert len(routes) > 10
    paths = {(method, route.path.replace("{name:path}", "a")) for route in routes for method in route.methods}
    return paths | {("GET", path) for path in ("/openapi.json", "/docs", "/redoc", "/nothing", "/health/", "/health//")}


HOSTS = ["x", "x/health?", "x/#", "x/?y=", "health", "x:80/ping"]


def test_every_route_but_health_needs_a_key(keyed: Live) -> None:
    for (method, path), host in itertools.product(sorted(every_path()), HOSTS):
        response = keyed.http.request(method, path, headers={"Host": host})
        assert response.status_code == (200 if path in OPEN_PATHS["all"] else 401), (method, path, host)
    error = keyed.post("/v1/completions", **BODY).json()["error"]
    assert (error["code"], error["type"]) == (401, "AuthenticationError")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer one", 200),
        ("bearer two", 200),
        ("Bearer three", 401),
        ("Bearer on", 401),
        ("Bearer", 401),
        ("Basic one", 401),
        ("one", 401),
        ("Bearer one two", 401),
    ],
)
def test_keys(keyed: Live, header: str, status: int) -> None:
    assert keyed.http.get("/v1/models", headers={"Authorization": header}).status_code == status


def test_anthropics_clients_have_a_header_of_their_own(keyed: Live) -> None:
    for headers, status in [
        ({"x-api-key": "one"}, 200),
        ({"x-api-key": "three"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "three", "Authorization": "Bearer two"}, 200),
        ({"x-api-key": "Bearer one"}, 401),
    ]:
        assert keyed.http.get("/v1/models", headers=headers).status_code == status, headers


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with live() as server:
        assert server.http.get("/v1/models").status_code == 401
        assert server.http.get("/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200
