"""The line on what the engine does."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from contextlib import suppress

import pytest

from jaxengine.contract.metrics import EngineStatistics, SchedulerStats
from jaxengine.server.telemetry.stats_log import StatsLog
from jaxengine.server.telemetry.tally import EngineNumbers, Tally
from tests.harness import Rig, make_request
from tests.host.engine.test_core import make_core


def numbers(stats: SchedulerStats, tally: Tally, *, rank: int = 0) -> EngineNumbers:
    return EngineNumbers(rank, EngineStatistics(scheduler=stats), tally)


class Setup:
    """An engine, its log, and a clock that the test moves."""

    def __init__(self) -> None:
        rig = Rig()
        self.core = make_core(rig)
        self.now = 100.0
        tally = Tally(max_model_len=96)
        self.core.recorder.listen(tally)
        self.log = StatsLog(lambda: [numbers(rig.scheduler.stats, tally)], clock=lambda: self.now)

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
    tally = Tally(max_model_len=96)
    log = StatsLog(lambda: [numbers(stats, tally)])
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


def test_each_replica_has_a_line_and_one_that_began_again_counts_from_nothing(lines: pytest.LogCaptureFixture) -> None:
    stats = make_core(Rig()).scheduler.stats
    tallies = [Tally(max_model_len=96), Tally(max_model_len=96)]
    both = [dataclasses.replace(stats, prefix_cache_queries=100, prefix_cache_hits=50)] * 2
    log = StatsLog(lambda: [numbers(both[rank], tallies[rank], rank=rank) for rank in (0, 1)])
    both[1] = dataclasses.replace(stats, prefix_cache_queries=40, prefix_cache_hits=10)
    tallies[1].generated_tokens = 7
    log.write()
    first, second = lines.messages
    assert first.startswith("Engine 000: ")
    assert second.startswith("Engine 001: ")
    assert second.endswith("Prefix cache hit rate: 25.0%")
