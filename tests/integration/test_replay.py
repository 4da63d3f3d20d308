"""The replay agrees with the real engine step for step: the embedded model on the CPU, under the replay's clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest

from benchmarks.replaying.targets import TARGETS
from buckets import Limits, plan
from jaxengine.bench.clock import Launch, Step, serve
from jaxengine.bench.scheduled import SAMPLING, Flat, Scheduled
from jaxengine.bench.traffic import Arrival
from jaxengine.contract.arrays import Masks
from jaxengine.contract.batch import Batch, StepResult
from jaxengine.contract.request import Request
from jaxengine.contract.runner import Pending, Runner
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import build_engine

TARGET = TARGETS["cpu"]
BUCKETS = ("8x8", "8x2", "8x1", "2x1")
LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=128, page_size=8)
NUM_PAGES = 48  # too few for eight of these sequences: some are preempted
OPTIONS = {
    "max_model_len": 128,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "page_size": 8,
    "num_pages": NUM_PAGES,
}
ARRIVALS = [
    Arrival(number * 0.06, ((7, 8 * (number % 4)), (20 + number, 3 + number * 29 % 60)), 1 + number * 17 % 40)
    for number in range(40)
]

Rows = tuple[str, tuple[tuple[int, int], ...]]
"""The bucket of a step, and where each of its rows starts and how long it is."""


def rows(batch: Batch) -> Rows:
    return str(batch.bucket), tuple((row.start, row.num_tokens) for row in batch.rows)


class Recording(Scheduled):
    """The replay's engine, which keeps what it schedules."""

    steps: list[Rows]

    def schedule(self) -> Step | None:
        step = super().schedule()
        if step is not None:
            self.steps.append(rows(step.plan[0]))
        return step


class Timed:
    """A runner on which a step takes as long as the target says; `now` moves on when a result is waited for."""

    def __init__(self, runner: Runner) -> None:
        self.steps: list[Rows] = []
        self.now = 0.0
        self._free = 0.0
        self._runner = runner

    @property
    def max_in_flight(self) -> int:
        return self._runner.max_in_flight

    def launch(self, batch: Batch) -> Pending:
        self.steps.append(rows(batch))
        ones = [row for row in batch.rows if row.num_tokens == 1]
        prompts = [(row.start, row.num_tokens) for row in batch.rows if row.num_tokens > 1]
        launch = Launch(batch.bucket.tokens, sum(row.start + 1 for row in ones), prompts)
        self._free = max(self.now, self._free) + TARGET.seconds(
            [launch], sum(row.want is not None for row in batch.rows)
        )
        return _Wait(self, self._free, self._runner.launch(batch))

    def masks(self, number: int, masks: Mapping[int, Masks]) -> None:
        self._runner.masks(number, masks)

    def close(self) -> None:
        self._runner.close()


@dataclasses.dataclass
class _Wait:
    timed: Timed
    end: float
    pending: Pending

    def wait(self) -> StepResult:
        self.timed.now = max(self.timed.now, self.end)
        return self.pending.wait()


def rule() -> Flat:
    grid = plan("explicit", LIMITS, buckets=BUCKETS)
    return Flat(grid.with_costs(TARGET.costs(grid.buckets)))


def replayed(arrivals: Sequence[Arrival]) -> list[Rows]:
    made: list[Recording] = []
    ledger = Ledger([PagePool(NUM_PAGES)], LIMITS.page_size)

    def make(clock: object) -> Recording:
        made.append(Recording(LIMITS, ledger, rule(), clock=lambda: 0.0))
        made[0].steps = []
        return made[0]

    served = serve(make, arrivals, TARGET, speed=1.0)
    assert served.requests == len(arrivals)
    assert made[0].scheduler.stats.num_preemptions > 0
    return made[0].steps


@pytest.mark.slow
def test_every_step_is_the_real_engines() -> None:
    engine = build_engine(EngineConfig.from_options(**OPTIONS, warmup="full"))
    core = engine.core
    core.scheduler.use(rule().grid)
    core._runner = timed = Timed(core._runner)
    waiting = list(enumerate(ARRIVALS))[::-1]
    while waiting or core.has_unfinished:
        if not core.has_unfinished:
            timed.now = max(timed.now, waiting[-1][1].time_s)
        while waiting and waiting[-1][1].time_s <= timed.now:
            number, arrival = waiting.pop()
            core.add(
                Request(
                    request_id=str(number),
                    prompt_token_ids=arrival.token_ids(),
                    sampling=dataclasses.replace(SAMPLING, max_tokens=arrival.output),
                    max_tokens=arrival.output,
                )
            )
        core.step()
    core.check_idle()
    engine.close()
    assert timed.steps == replayed(ARRIVALS)
