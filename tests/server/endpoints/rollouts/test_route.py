"""Pausing, sleeping and other weights over HTTP, on servers that allow it and on one that does not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from jaxengine.contract.runner import Weights
from jaxengine.errors import CheckpointError
from jaxengine.options.config import EngineConfig
from tests.fakes import GatedRunner
from tests.fronts import make_engine
from tests.server.rig import Live, live

PATHS = ("/sleep", "/wake_up", "/pause", "/resume", "/update_weights")


def read(source: Any) -> Weights:
    if source != "there":
        raise CheckpointError(f"{source} is no directory")
    return Weights({"salt": (5,)})


@pytest.fixture(scope="module")
def trained() -> Iterator[Live]:
    with live(make_engine(runner=GatedRunner), server_dev_mode=True) as running:
        running.engine.core.changes.read = read
        running.runner.open()
        yield running


def update(server: Live, **body: Any) -> httpx.Response:
    return server.http.post("/update_weights", json=body)


def complete(server: Live, **body: Any) -> dict[str, Any]:
    answer = server.post("/v1/completions", prompt="Tom", max_tokens=8, ignore_eos=True, temperature=0, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_a_server_does_nothing_of_it_unless_asked_to(server: Live) -> None:
    for path in PATHS:
        answer = server.http.post(path, json={"path": "x"} if path == "/update_weights" else None)
        assert answer.status_code == 404, path
        assert "start the server with --" in answer.json()["error"]["message"]
    assert server.http.get("/is_sleeping").status_code == 404
    assert server.http.get("/get_weight_version").json() == {"weight_version": "0"}


def test_sleep_mode_alone_lets_it_sleep() -> None:
    with live() as server:
        front = server.engine.front
        server.service.front = front.__class__(
            **{**vars(front), "config": EngineConfig.from_options(enable_sleep_mode=True)}
        )
        assert server.http.post("/sleep?level=1").status_code == 200
        assert server.http.get("/is_sleeping").json() == {"is_sleeping": True}
        assert server.http.post("/pause").status_code == 404
        assert server.http.post("/wake_up").status_code == 200


def test_sleeping_and_waking(trained: Live) -> None:
    before = complete(trained)
    for level, state in ((1, "weights_offloaded"), (2, "discard_all")):
        assert trained.http.post(f"/sleep?level={level}").status_code == 200
        assert trained.http.get("/is_sleeping").json() == {"is_sleeping": True}
        assert f'sleep_state="{state}"}} 1.0' in trained.http.get("/metrics").text
        assert trained.post("/v1/completions", prompt="Tom").status_code == 503
        assert trained.http.post("/wake_up?tags=kv_cache").status_code == 200
        assert trained.http.get("/is_sleeping").json() == {"is_sleeping": True}
        if level == 2:
            assert update(trained, path="there", weight_version="back").status_code == 200
        else:
            assert trained.http.post("/wake_up?tags=weights").status_code == 200
        assert trained.http.get("/is_sleeping").json() == {"is_sleeping": False}
    assert before["weight_versions"][0]["num_tokens"] == 8
    assert complete(trained)["weight_versions"] == [{"version": "back", "num_tokens": 8}]
    for path in ("/sleep?level=3", "/sleep?mode=gently", "/wake_up?tags=heap", "/pause?mode=now"):
        assert trained.http.post(path).status_code == 400, path
    assert update(trained, path="nowhere").status_code == 400


def settle(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


class Stopped:
    """A request that the server has taken some steps of, when it is asked something: steps end where that is read."""

    def __init__(self, server: Live, path: str, **body: Any) -> None:
        self.server = server
        server.runner.shut()
        self._asked = threading.Thread(target=self._ask, args=(path, body))
        self._asked.start()
        for _ in range(4):
            taken = server.runner.steps
            server.runner.allow(1)
            settle(lambda taken=taken: server.runner.steps > taken)

    def then(self, path: str) -> None:
        """Ask something that is done once nothing runs."""
        asked = threading.Thread(target=lambda: self.server.http.post(path))
        asked.start()
        settle(lambda: self.server.engine.front.channel._messages.qsize())  # type: ignore[attr-defined]
        self.server.runner.open()
        asked.join()

    def answer(self) -> dict[str, Any]:
        self._asked.join()
        return self._answer["choices"][0]

    def _ask(self, path: str, body: dict[str, Any]) -> None:
        self._answer = self.server.post(path, max_tokens=20, ignore_eos=True, temperature=0, **body).json()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Tom"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tom"}]}),
    ],
)
def test_a_request_is_kept_across_an_update_and_says_so(trained: Live, path: str, body: dict[str, Any]) -> None:
    first = trained.http.get("/get_weight_version").json()["weight_version"]
    stopped = Stopped(trained, path, **body)
    stopped.then("/pause?mode=keep&clear_cache=false")
    assert trained.http.get("/is_paused").json() == {"is_paused": True}
    version = f"after {first}"
    assert update(trained, path="there", weight_version=version, mode="keep").json() == {"weight_version": version}
    assert trained.http.post("/resume").json() == {"status": "resumed"}
    versions = stopped.answer()["weight_versions"]
    assert [each["version"] for each in versions] == [first, version]
    assert sum(each["num_tokens"] for each in versions) == 20


def test_what_is_aborted_keeps_its_tokens(trained: Live) -> None:
    stopped = Stopped(trained, "/v1/completions", prompt="Tom", return_token_ids=True)
    stopped.then("/pause")
    choice = stopped.answer()
    assert trained.http.post("/resume").status_code == 200
    assert choice["finish_reason"] == "abort"
    assert 0 < sum(each["num_tokens"] for each in choice["weight_versions"]) == len(choice["token_ids"]) < 20


def test_streams_tell_it_at_their_end(trained: Live) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "Tom"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tom"}]}),
    ):
        events = trained.events(path, max_tokens=5, ignore_eos=True, **body)
        chunks = [json.loads(event) for event in events if event != "[DONE]"]
        told = [
            choice["weight_versions"] for chunk in chunks for choice in chunk["choices"] if "weight_versions" in choice
        ]
        assert [sum(each["num_tokens"] for each in versions) for versions in told] == [5]
