"""What a step may take follows from what steps took, with a floor by platform, and nothing where a compiler may be in the way."""

from __future__ import annotations

from buckets import Bucket
from jaxengine.startup.step_timeout import step_timeout

MEASURED = {Bucket(8, 1): 0.02, Bucket(8, 64): 2.0}


def test_a_step_may_take_a_hundred_times_the_longest() -> None:
    assert step_timeout("cpu", MEASURED, compiles_on_use=False) == 200.0


def test_short_steps_have_a_floor() -> None:
    assert step_timeout("cpu", {}, compiles_on_use=False) == 60.0
    assert step_timeout("tpu", {Bucket(8, 1): 0.01}, compiles_on_use=False) == 30.0


def test_a_step_that_compiles_takes_what_it_takes() -> None:
    assert step_timeout("cpu", MEASURED, compiles_on_use=True) == 0.0
