"""Many seeds, on several processes."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation.scenario import draw_scenario
from tests.simulation.world import run


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a seed."""

    seed: int
    errors: tuple[str, ...]
    counts: Counter[str]


def run_seed(seed: int) -> Result:
    """Run one."""
    history = run(draw_scenario(seed))
    return Result(seed, history.errors, history.counts)


def run_seeds(seeds: range, *, jobs: int) -> Iterator[Result]:
    """Run all, in any order."""
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:  # threads of grammars do not survive a fork
        yield from pool.imap_unordered(run_seed, seeds, chunksize=20)
