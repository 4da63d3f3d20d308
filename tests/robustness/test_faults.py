"""Faults of the device and the thread (groups F1, F2, E10): every client is told, /health tells the truth, nothing hangs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jaxengine.contract.batch import Batch
from tests.fakes import FakePending, GatedRunner
from tests.fronts import make_engine
from tests.robustness.answers import assert_refused
from tests.robustness.loopback import until
from tests.server.rig import Live, live

LONG = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True}


class Failing(GatedRunner):
    """Runs freely until `fail` says how a step ends."""

    fail: BaseException | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.opened = True

    def launch(self, batch: Batch) -> FakePending:
        time.sleep(0.002)
        if self.fail is not None:
            raise self.fail
        return super().launch(batch)


@pytest.fixture
def broken() -> Iterator[Live]:
    """A server whose device can be made to fail."""
    with live(make_engine(runner=Failing)) as server:
        yield server


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError("INTERNAL: device lost at 0x7fff"),
        MemoryError("RESOURCE_EXHAUSTED"),
        SystemError("x"),
        SystemExit(3),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_failing_step_is_told_to_everybody_at_once(fault: BaseException, broken: Live) -> None:
    with ThreadPoolExecutor(8) as threads:
        whole = [threads.submit(broken.post, "/v1/completions", **LONG) for _ in range(4)]
        streams = [threads.submit(broken.events, "/v1/completions", **LONG) for _ in range(4)]
        until(lambda: broken.service.engine.statistics.scheduler.num_running == 8, "all run")
        broken.runner.fail = fault
        for answer in whole:
            assert_refused(answer.result(10), 503)
        for stream in streams:
            *_, error, done = stream.result(10)
            assert '"code":503' in error
            assert "0x7fff" not in error
            assert done == "[DONE]"
    assert broken.http.get("/health").status_code == 503
    for path, body in (
        ("/v1/completions", LONG),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        assert_refused(broken.post(path, **body), 503)
    assert broken.http.get("/version").status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["Tom", "Once"]}),
        ("/pooling", {"input": "Tom"}),
        ("/score", {"text_1": "Tom", "text_2": ["Tim", "Once"]}),
        ("/rerank", {"query": "Tom", "documents": ["Tim", "Once"]}),
        ("/v2/embed", {"texts": ["Tom"]}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_failing_step_is_told_to_who_pools_as_to_who_generates(path: str, body: dict[str, Any], broken: Live) -> None:
    assert broken.post(path, **body).status_code == 200
    broken.runner.fail = MemoryError("RESOURCE_EXHAUSTED")
    assert_refused(broken.post(path, **body), 503)  # of the step that failed
    assert_refused(broken.post(path, **body), 503)  # of an engine that is dead


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    engine = make_engine(runner=GatedRunner, max_num_seqs=1)
    with live(engine, max_num_queued_reqs=3) as server, ThreadPoolExecutor(20) as threads:
        answers = [threads.submit(server.post, "/v1/completions", **LONG) for _ in range(20)]
        until(lambda: sum(answer.done() for answer in answers) >= 15, "most are refused")
        server.runner.open()
        refused = [answer.result(20) for answer in answers if answer.result(20).status_code != 200]
        assert 15 <= len(refused) < 20
        for answer in refused:
            assert_refused(answer, 503)
            assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("steps", [0, 1, 5], ids=["queued", "its prompt computed", "decoding"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_only_its_request(steps: int, stream: bool) -> None:
    with live(make_engine(runner=GatedRunner), request_timeout=0.3) as server:
        server.runner.allow(steps)
        if stream:
            *_, error, done = server.events("/v1/completions", **LONG)
            assert '"code":504' in error
            assert done == "[DONE]"
        else:
            assert_refused(server.post("/v1/completions", **LONG), 504)
        server.runner.open()
        until(lambda: server.service.engine.statistics.scheduler.num_running == 0, "its pages are free")
        assert server.post("/v1/completions", prompt="a", max_tokens=2).status_code == 200
