"""Adapters under names of their own: from the start, loaded while the server runs, and found in a directory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from jaxengine.errors import CheckpointError
from jaxengine.server.app import create_app
from jaxengine.server.options import ServerConfig
from jaxengine.server.service import Service
from tests.fronts import make_engine
from tests.server.rig import Live, live

MODULES = ("one=/adapters/one", '{"name": "two", "path": "/adapters/two", "base_model_name": "llama"}')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("adapters")
    (folder / "found").mkdir()
    (folder / "found" / "adapter_config.json").write_text("{}")
    (folder / "empty").mkdir()
    engine = make_engine(max_loras=2)
    with live(
        engine, lora_modules=MODULES, allow_runtime_lora_updating=True, lora_resolver_cache_dir=str(folder)
    ) as server:
        server.runner.files[str(folder / "found")] = "a" * 32
        yield server


def text(server: Live, model: str | None, **fields: Any) -> str:
    answer = server.post("/v1/completions", prompt="Once upon", model=model, max_tokens=8, temperature=0, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == (model or "tiny")
    return answer.json()["choices"][0]["text"]


def test_adapters_are_models_of_every_route(server: Live) -> None:
    answers = [text(server, name) for name in (None, "one", "two")]
    assert len(set(answers)) == 3
    assert [text(server, name) for name in (None, "one", "two")] == answers
    messages = [{"role": "user", "content": "Tom"}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": messages, "max_tokens": 3},
        "/v1/responses": {"input": "Tom", "max_output_tokens": 3},
        "/v1/messages": {"messages": messages, "max_tokens": 3},
        "/v1/embeddings": {"input": "Tom"},
        "/pooling": {"input": "Tom"},
    }
    for path, body in bodies.items():
        found = [server.post(path, model=name, **body).json() for name in ("tiny", "one", "two")]
        assert [each["model"] for each in found] == ["tiny", "one", "two"], path
        parts = [
            str(each.get("choices") or each.get("output") or each.get("content") or each.get("data")) for each in found
        ]
        if path in ("/v1/embeddings", "/pooling"):
            assert len(set(parts)) == 3
    assert server.post("/tokenize", model="one", prompt="Tom").status_code == 200


def test_the_list_of_models_tells_whose_adapters_they_are(server: Live) -> None:
    models = {model["id"]: model for model in server.http.get("/v1/models").json()["data"]}
    assert list(models)[:3] == ["tiny", "one", "two"]
    assert (models["one"]["root"], models["one"]["parent"]) == ("/adapters/one", "tiny")
    assert (models["two"]["parent"], models["tiny"]["parent"]) == ("llama", None)
    assert server.http.get("/v1/models/two").json()["id"] == "two"
    assert server.http.get("/v1/models/three").status_code == 404


def test_adapters_come_and_go(server: Live) -> None:
    assert server.post("/v1/completions", model="new", prompt="a").status_code == 404
    added = server.post("/v1/load_lora_adapter", lora_name="new", lora_path="/adapters/three")
    assert (added.status_code, added.text) == (200, "Success: LoRA adapter 'new' added successfully.")
    before = text(server, "new")
    again = server.post("/v1/load_lora_adapter", lora_name="new", lora_path="/adapters/four")
    assert again.status_code == 400
    assert "has already been loaded" in again.json()["error"]["message"]
    replaced = server.post("/v1/load_lora_adapter", lora_name="new", lora_path="/adapters/four", load_inplace=True)
    assert replaced.status_code == 200
    assert text(server, "new") != before
    removed = server.post("/v1/unload_lora_adapter", lora_name="new")
    assert (removed.status_code, removed.text) == (200, "Success: LoRA adapter 'new' removed successfully.")
    gone = server.post("/v1/unload_lora_adapter", lora_name="new")
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "lora_name")
    assert server.post("/v1/completions", model="new", prompt="a").status_code == 404


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"lora_name": "x", "lora_path": "/adapters/none"}, "/adapters/none is no adapter"),
        ({"lora_name": "tiny", "lora_path": "/adapters/one"}, "is a name of the model itself"),
        ({"lora_name": "x"}, "lora_path"),
        ({"lora_name": "", "lora_path": "/adapters/one"}, "lora_name"),
    ],
    ids=str,
)
def test_what_cannot_be_loaded(server: Live, body: dict[str, Any], message: str) -> None:
    answer = server.post("/v1/load_lora_adapter", **body)
    assert answer.status_code == 400
    assert message in answer.text


def test_a_directory_resolves_names(server: Live) -> None:
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(text(server, "found"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert len(set(answers)) == 1
    assert "found" in {model["id"] for model in server.http.get("/v1/models").json()["data"]}
    for name in ("empty", "..", "../adapters/found", ".", "found/", "a\x00b"):
        assert server.post("/v1/completions", model=name, prompt="a").status_code == 404


def test_metrics_name_the_adapters(server: Live) -> None:
    text(server, "one")
    line = next(
        line for line in server.http.get("/metrics").text.splitlines() if line.startswith("vllm:lora_requests_info{")
    )
    assert 'max_lora="2"' in line
    assert 'running_lora_adapters=""' in line
    assert 'waiting_lora_adapters=""' in line
    assert float(line.split()[-1]) > 1e9


def test_loading_is_off_unless_asked_for() -> None:
    with live(make_engine(max_loras=1)) as server:
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            refused = server.post(path, lora_name="x", lora_path="/adapters/one")
            assert refused.status_code == 404
            assert "--allow-runtime-lora-updating" in refused.json()["error"]["message"]
        assert "lora_requests_info" in server.http.get("/metrics").text
    with live() as plain:
        assert "lora_requests_info" not in plain.http.get("/metrics").text
        assert isinstance(plain.http, httpx.Client)


def test_an_adapter_of_the_start_that_cannot_be_read_ends_the_start() -> None:
    engine = make_engine(max_loras=1)
    service = Service.of(engine.front, ServerConfig.from_options(lora_modules=("x=/adapters/none",)))
    app = create_app(service)

    async def start() -> None:
        async with app.router.lifespan_context(app):
            raise AssertionError("it has started")

    with pytest.raises(CheckpointError, match="/adapters/none is no adapter"):
        asyncio.run(start())
    engine.close()
