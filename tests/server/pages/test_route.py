"""The pages over HTTP: what is served, to whom, with which headers."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from jaxengine.front.starting import StartPhases
from jaxengine.server.options import ServerConfig
from jaxengine.server.pages.files import PATHS, public_paths, static_files
from jaxengine.server.starting import starting_app
from tests.server.rig import Live, live

DATA = ("/playground/about", "/dashboard/stream")
KEY = {"Authorization": "Bearer k"}


@pytest.mark.parametrize("path", PATHS)
def test_a_page_lets_nothing_in(path: str, server: Live) -> None:
    answer = server.http.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert not re.search("unsafe|http|\\*", answer.headers["content-security-policy"])
    for name, value in {
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
    }.items():
        assert answer.headers[name] == value
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=|https?://", answer.text)


@pytest.mark.parametrize("path", PATHS)
def test_all_that_a_page_names_is_served(path: str, server: Live) -> None:
    named = re.findall(r'(?:href|src)="(pages/[^"]+)"', server.http.get(path).text)
    assert len(named) >= 6
    for name in named:
        assert server.http.get(f"/{name}").status_code == 200, name


def test_modules_import_what_is_there_and_nothing_from_elsewhere() -> None:
    own = {
        name: file.body.decode() for name, file in static_files().items() if name.endswith(".js") and "/" not in name
    }
    imported = [found for text in own.values() for found in re.findall(r'^import .* from "([^"]+)";$', text, re.M)]
    assert {found.removeprefix("./") for found in imported} <= set(static_files())
    assert not [
        name
        for name, text in own.items()
        if re.search("innerHTML|insertAdjacentHTML|eval\\(|new Function|https?://", text)
    ]


def test_a_browser_that_has_a_file_is_not_sent_it_again(server: Live) -> None:
    first = server.http.get("/pages/api.js")
    again = server.http.get("/pages/api.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]


@pytest.mark.parametrize(
    "name", ["nothing.js", "../route.py", "%2e%2e/route.py", "..%2froute.py", "vendor/README.md", ""]
)
def test_no_other_file_is_served(name: str, server: Live) -> None:
    assert server.http.get(f"/pages/{name}").status_code == 404


def test_with_keys_files_are_open_and_data_is_not() -> None:
    with live(api_key=("k",)) as server:
        assert {server.http.get(path).status_code for path in public_paths()} == {200}
        for path in DATA:
            assert server.http.get(path).status_code == 401
        assert server.http.get("/pages/nothing").status_code == 401
        assert server.http.get("/playground/about", headers=KEY).json()["models"] == ["tiny"]
    with live(api_key=("k",), api_key_scope="all") as closed:
        assert {closed.http.get(path).status_code for path in (*public_paths(), *DATA)} == {401}


def test_pages_are_there_while_the_engine_starts() -> None:
    for ui in (True, False):
        app = starting_app({0: StartPhases()}, ServerConfig.from_options(ui=ui), model_name="m")
        starting = TestClient(app, base_url="http://localhost")
        assert {starting.get(path).status_code for path in public_paths()} == {200 if ui else 503}
        assert {starting.get(path).status_code for path in DATA} == {503}


def test_without_ui_there_is_nothing() -> None:
    with live(ui=False) as server:
        assert {server.http.get(path).status_code for path in (*public_paths(), *DATA)} == {404}
    with live(ui=False, api_key=("k",)) as server:
        assert {server.http.get(path).status_code for path in (*public_paths(), *DATA)} == {401}


def test_pages_know_the_prefix_that_a_proxy_strips() -> None:
    with live(root_path='/a"b/') as server:
        assert '<base href="/a&quot;b/">' in server.http.get("/").text
    with live(root_path="/api") as server:
        for path in ("/", "/api", "/api/", "/dashboard", "/api/dashboard"):
            assert '<base href="/api/">' in server.http.get(path).text, path
        assert server.http.get("/api/pages/api.js").status_code == 200
    with live() as server:
        assert "<base" not in server.http.get("/").text


def test_what_the_playground_is_told(server: Live) -> None:
    told = server.http.get("/playground/about").json()
    assert (
        told.items() >= {"models": ["tiny"], "chat": True, "generates": True, "inputs": ["text"], "tools": None}.items()
    )
    assert told["defaults"]["temperature"] == 1.0
