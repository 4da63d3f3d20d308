"""What every request passes: CORS, ids, prefixes, the log; the routes that say how the server is; the description."""

from __future__ import annotations

import httpx
import pytest

import jaxengine
from tests.fronts import MAX_LEN
from tests.server.rig import Live, live

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
