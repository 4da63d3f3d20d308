"""What every request passes: keys, CORS, ids, limits; and the routes that say how the server is."""

from __future__ import annotations

import itertools
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

import jaxengine
from tests.server.rig import MAX_LEN, Live, live

BODY = {"prompt": "Tom", "max_tokens": 2, "temperature": 0}


def test_how_the_server_is(server: Live) -> None:
    for method, path in [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")]:
        response = server.http.request(method, path)
        assert (response.status_code, response.content) == (200, b"")
    assert server.http.get("/version").json() == {"version": jaxengine.__version__}
    assert server.http.get("/load").json() == {"server_load": 0}
    assert server.post("/reset_prefix_cache").json() == {"success": True}


def test_models() -> None:
    with live(served_model_name=("first", "org/second")) as server:
        models = server.http.get("/v1/models").json()
        assert models["object"] == "list"
        assert [model["id"] for model in models["data"]] == ["first", "org/second"]
        assert {(model["root"], model["max_model_len"]) for model in models["data"]} == {("tiny", MAX_LEN)}
        assert server.http.get("/v1/models/org/second").json()["id"] == "org/second"
        assert server.http.get("/v1/models/third").status_code == 404
        assert server.post("/v1/completions", model="org/second", **BODY).json()["model"] == "first"
        assert server.post("/v1/completions", model="tiny", **BODY).status_code == 404


HOSTS = ["x", "x/health?", "x/#", "x/?y=", "health", "x:80/ping"]


def test_every_route_but_health_needs_a_key() -> None:
    with live(api_key=("one", "two")) as server:
        app: Any = server._server.config.loaded_app
        routes = [route for route in _routes(server) if isinstance(route, APIRoute)]
        assert app is not None
        assert len(routes) > 10
        paths = {(method, route.path) for route in routes for method in route.methods}
        paths |= {
            ("GET", path)
            for path in ("/openapi.json", "/docs", "/redoc", "/metrics", "/nothing", "/health/", "//health")
        }
        for (method, path), host in itertools.product(sorted(paths), HOSTS):
            response = server.http.request(method, path.replace("{name:path}", "a"), headers={"Host": host})
            expected = 200 if path in ("/health", "/ping") else 401
            assert response.status_code == expected, (method, path, host)
        error = server.post("/v1/completions", **BODY).json()["error"]
        assert (error["code"], error["type"]) == (401, "AuthenticationError")


def _routes(server: Live) -> list[Any]:
    from jaxengine.server.app import ROUTERS

    return [route for router in ROUTERS for route in router.routes]


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
def test_keys(header: str, status: int) -> None:
    with live(api_key=("one", "two")) as server:
        response = server.http.get("/v1/models", headers={"Authorization": header})
        assert response.status_code == status


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with live() as server:
        assert server.http.get("/v1/models").status_code == 401
        assert server.http.get("/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_browsers_may_call_only_from_origins_that_were_named() -> None:
    asked = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
    with live(api_key=("k",), allowed_origins=("http://a.example",)) as server:
        granted = server.http.options("/v1/completions", headers=asked)
        assert granted.status_code == 200
        assert granted.headers["access-control-allow-origin"] == "http://a.example"
        assert server.http.options("/v1/completions", headers={**asked, "Origin": "http://b"}).status_code == 400
        assert server.post("/v1/completions", **BODY).status_code == 401
    with live() as server:
        assert "access-control-allow-origin" not in server.http.get("/health", headers=asked).headers


def test_request_ids() -> None:
    with live(enable_request_id_headers=True) as server:
        labelled = server.http.post("/v1/completions", json=BODY, headers={"X-Request-Id": "abc-1"})
        assert (labelled.headers["x-request-id"], labelled.json()["id"]) == ("abc-1", "cmpl-abc-1")
        again = server.http.post("/v1/completions", json=BODY, headers={"X-Request-Id": "abc-1"})
        assert again.status_code == 200
        odd = server.http.post("/v1/completions", json=BODY, headers={"X-Request-Id": "a b/../c"})
        assert "/" not in odd.headers["x-request-id"]
        assert len(server.http.get("/health").headers["x-request-id"]) > 8
        assert server.post("/v1/completions", request_id="mine", **BODY).json()["id"] == "cmpl-mine"
    with live() as server:
        assert "x-request-id" not in server.http.get("/health").headers


def test_bodies_are_bounded(server: Live) -> None:
    with live(max_body_bytes=1000) as small:
        for content in (b'{"prompt": "' + b"a" * 2000 + b'"}', (b"x" * 600 for _ in range(3))):
            response = small.http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
            assert response.status_code == 413
            assert "1000 bytes" in response.json()["error"]["message"]
        assert small.post("/v1/completions", **BODY).status_code == 200
    assert server.post("/v1/completions", **BODY).status_code == 200


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "needs a JSON object as its body"),
        (b"{", "not valid JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "not valid JSON"),
        (b'{"prompt": "\\ud800"}', "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b'{"prompt": ' + b"[" * 100_000, "not valid JSON"),
        (b'{"prompt": "a", "x": ' + b"[" * 200 + b"]" * 200 + b"}", "nested more than 100 levels"),
        (b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}", ""),
        (b'{"prompt": "a", "temperature": 1e999}', ""),
        (b"[1, 2]", "valid dictionary"),
        (b'"text"', "valid dictionary"),
        (b"null", "needs a JSON object as its body"),
    ],
    ids=range(12),
)
def test_bodies_are_strict_json(server: Live, content: bytes, message: str) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
        response = server.http.post(path, content=content, headers=JSON)
        assert response.status_code == 400, (path, response.text)
        assert message in response.json()["error"]["message"] or path != "/v1/completions"


def test_a_body_of_another_type_is_a_400(server: Live) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        headers = {} if kind is None else {"Content-Type": kind}
        response = server.http.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)
        assert response.status_code == 400, kind
        assert "Content-Type: application/json" in response.json()["error"]["message"]


def test_unknown_paths_and_methods_answer_in_openais_form(server: Live) -> None:
    for method, path, status in [("GET", "/nothing", 404), ("GET", "/v1/completions", 405), ("PUT", "/health", 405)]:
        response = server.http.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["code"] == status


def test_a_root_path_may_be_stripped_or_not() -> None:
    with live(root_path="/api", api_key=("k",)) as server:
        key = {"Authorization": "Bearer k"}
        for path in ("/v1/models", "/api/v1/models"):
            assert server.http.get(path).status_code == 401
            assert server.http.get(path, headers=key).status_code == 200
        assert server.http.get("/api/health").status_code == 200


def test_the_description_has_errors_in_openais_form(server: Live) -> None:
    description = server.http.get("/openapi.json").json()
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
        responses = description["paths"][path]["post"]["responses"]
        assert "422" not in responses
        assert responses["400"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorBody")
    assert description["components"]["schemas"]["ErrorBody"]["required"] == ["error"]
    with live(disable_fastapi_docs=True) as bare:
        assert bare.http.get("/openapi.json").status_code == bare.http.get("/docs").status_code == 404


def test_prompts_are_logged_only_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        with live() as server:
            assert server.post("/v1/completions", **{**BODY, "prompt": "a secret thing"}).status_code == 200
        assert "secret" not in caplog.text
        with live(enable_log_requests=True, max_log_len=8) as server:
            assert server.post("/v1/completions", **{**BODY, "prompt": "a secret thing"}).status_code == 200
    assert "prompt 'a secret'" in caplog.text
    assert "max_tokens=2" in caplog.text


def test_nothing_of_a_prompt_or_key_is_in_errors(server: Live) -> None:
    secret = "hunter2" * 40
    response = server.http.post("/v1/completions", json={"prompt": secret, "n": "x"}, headers={"Authorization": secret})
    assert response.status_code == 400
    assert "hunter2" not in response.text
    assert httpx.get(f"{server.url}/{secret}").status_code == 404
