"""Whatever happens, every client gets its own right answer or a permitted end; and one seed is one history."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.simulation.focus import behind, operated
from tests.simulation.many import run_seeds
from tests.simulation.scenario import Scenario, draw_scenario
from tests.simulation.world import run

DIGESTS = """
from tests.simulation.scenario import draw_scenario
from tests.simulation.world import run
print(*(run(draw_scenario(seed)).digest for seed in range(30)))
"""


def test_all_is_well() -> None:
    for result in run_seeds(range(20), jobs=1):
        assert not result.errors, f"python -m tests.simulation --seed {result.seed}"


@pytest.mark.parametrize("focus", [behind, operated], ids=lambda focus: focus.__name__)
def test_all_is_well_behind_and_while_engines_sleep(focus: Callable[[Scenario], Scenario]) -> None:
    for seed in range(8):
        assert not run(focus(draw_scenario(seed))).errors, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [0, 300, 600, *(pytest.param(first, marks=pytest.mark.rare) for first in (100, 200, 400, 500, 700, 800, 900))],
)
def test_all_is_well_in_many_seeds(first: int) -> None:
    for result in run_seeds(range(first, first + 100), jobs=1):
        assert not result.errors, f"python -m tests.simulation --seed {result.seed}"


def test_a_seed_replays_exactly() -> None:
    for seed in range(3):
        first, again = run(draw_scenario(seed)), run(draw_scenario(seed))
        assert first.log == again.log
        assert first.digest == again.digest
        assert first.log


@pytest.mark.slow
def test_a_seed_replays_exactly_in_another_process() -> None:
    """Where sets of strings have another order."""
    printed = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert len(printed[0].split()) == 30
