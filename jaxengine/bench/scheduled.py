"""The engine's scheduler and page accounts under the clock (`clock.py`), filled by a rule that says which shapes there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from buckets import Bucket, Grid, Limits
from jaxengine.bench.clock import Launch, Step
from jaxengine.bench.traffic import CONTENTS, Arrival
from jaxengine.contract.batch import StepResult
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.scheduler import Scheduler

SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True, detokenize=False)

Run = tuple[int, int]
"""Where a row starts and how many tokens it has."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a step: those of one token and the positions that they attend to in all, and the rows of prompts."""

    bucket: Bucket
    decoding: int
    context: int
    prompts: Sequence[Run]

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return self.decoding + sum(count for _, count in self.prompts)


class Rule(Protocol):
    """How a step's rows become launches. `grid` is what the scheduler fills, `in_flight` how many steps may be planned ahead."""

    programs: int
    grid: Grid
    in_flight: int

    def launches(self, work: Rows) -> Sequence[Launch]:
        """The launches of a step."""
        ...


class Flat:
    """One launch of a bucket of token places: the engine's own rule."""

    in_flight = 2

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.programs = len(grid)

    def launches(self, work: Rows) -> Sequence[Launch]:
        return (Launch(work.bucket.tokens, work.context, work.prompts),)


class Scheduled:
    """The engine's scheduler and page accounts. The plan of a step is `(batch, tokens sampled, rows)`."""

    def __init__(
        self, limits: Limits, ledger: Ledger, rule: Rule, *, clock: Callable[[], float], policy: str = "fcfs"
    ) -> None:
        bounds = SchedulerLimits(
            max_num_seqs=limits.max_rows,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            scheduling_policy=policy,
        )
        self.scheduler = Scheduler(
            bounds, rule.grid, ledger, vocab_size=CONTENTS, max_in_flight=rule.in_flight, clock=clock
        )
        self.programs = rule.programs
        self.in_flight = rule.in_flight
        self._rule = rule
        self._max_model_len = limits.max_model_len

    @property
    def num_waiting(self) -> int:
        return self.scheduler.stats.num_waiting

    @property
    def resumes_at(self) -> float | None:
        return None

    def add(self, number: int, arrival: Arrival) -> None:
        self.scheduler.add(
            Request(
                request_id=str(number),
                prompt_token_ids=arrival.token_ids(),
                sampling=SAMPLING,
                max_tokens=min(arrival.output, self._max_model_len - arrival.prompt),
                share=arrival.share,
            )
        )

    def schedule(self) -> Step | None:
        batch = self.scheduler.schedule()
        if batch is None:
            return None
        decoding = context = sampled = 0
        prompts: list[Run] = []
        for row in batch.rows:
            sampled += row.want is not None
            if (count := row.num_tokens) == 1:
                decoding += 1
                context += row.start + 1
            else:
                prompts.append((row.start, count))
        rows = Rows(batch.bucket, decoding, context, prompts)
        return Step(self._rule.launches(rows), sampled, rows.tokens, (batch, sampled, rows))

    def commit(self, step: Step) -> Iterable[tuple[int, int, bool]]:
        batch, sampled, _ = step.plan
        updates = self.scheduler.commit(batch, StepResult(np.zeros(sampled, np.int32), (None,) * sampled))
        return [(int(update.request_id), len(update.token_ids), update.finish_reason is not None) for update in updates]
