"""The line on what the engine does."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from contextlib import suppress

import pytest

from jaxengine.server.telemetry.stats_log import StatsLog
from jaxengine.server.telemetry.tally import Tally
from tests.harness import Rig, make_request
from tests.host.engine.test_core import make_core


class Setup:
    """An engine, its log, and a clock that the test moves."""

    def __init__(self) -> None:
        rig = Rig()
        self.core = make_core(rig)
        self.now = 100.0
        tally = Tally(max_model_len=96)
        self.core.recorder.listen(tally)
        self.log = StatsLog(tally, lambda: rig.scheduler.stats, clock=lambda: self.now)

    def run(self) -> None:
        while self.core.has_unfinished:
            self.core.step()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="jaxengine")
    monkeypatch.setattr(logging.getLogger("jaxengine"), "propagate", True)
    return caplog


def test_rates_are_those_since_the_line_before(lines: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    for prompt in (range(20), range(50, 70)):
        setup.core.add(make_request("a", prompt, max_tokens=10))
        setup.run()
        setup.now += 10
        setup.log.write()
    for line in lines.messages:
        assert line == (
            "Engine 000: Avg prompt throughput: 2.0 tokens/s, Avg generation throughput: 1.0 tokens/s, "
            "Running: 0 reqs, Waiting: 0 reqs, KV cache usage: 0.0%, Prefix cache hit rate: 0.0%"
        )
    assert len(lines.messages) == 2


def test_what_runs_and_waits_now(lines: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    for number in range(6):
        setup.core.add(make_request(f"r{number}", range(16), max_tokens=5))
    setup.core.step()
    setup.log.write()
    stats = setup.core.scheduler.stats
    assert stats.num_running
    assert stats.num_waiting
    running, waiting, usage = stats.num_running, stats.num_waiting, 100 * stats.kv_cache_usage
    assert f"Running: {running} reqs, Waiting: {waiting} reqs, KV cache usage: {usage:.1f}%" in lines.messages[0]


def test_preemptions_are_told_with_advice(lines: pytest.LogCaptureFixture) -> None:
    stats = make_core(Rig()).scheduler.stats
    log = StatsLog(Tally(max_model_len=96), lambda: stats)
    for count in (0, 3, 3):
        stats = dataclasses.replace(stats, num_preemptions=count)
        log.write()
    told, advice, again = lines.messages[1:]
    assert told.endswith("Prefix cache hit rate: 0.0%, Preemptions: 3")
    assert again == told
    assert advice.startswith("3 sequences were preempted for lack of KV cache")
    assert "Raise memory_utilization" in advice


def test_an_idle_engine_says_so_once(lines: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    setup.core.add(make_request("a", range(5)))
    setup.run()
    for _ in range(4):
        setup.now += 10
        setup.log.write()
    assert [record.levelname for record in lines.records] == ["INFO", "INFO", "DEBUG", "DEBUG"]


def test_it_writes_at_its_interval(lines: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(Setup().log.run(0.01), 1.0)

    asyncio.run(run())
    assert len(lines.messages) > 2
