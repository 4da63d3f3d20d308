"""Waits in fine steps, and quantiles of them."""

from __future__ import annotations

import random

import pytest

from buckets import Bucket
from jaxengine.contract.metrics import FirstToken, StepStats
from jaxengine.server.telemetry.pulse import FINE, Pulse, quantile

SHAPE = Bucket(4, 2)


def step(gaps: dict[float, int], *, first: tuple[FirstToken, ...] = ()) -> StepStats:
    return StepStats(
        shape=SHAPE,
        num_tokens=1,
        num_padded_tokens=8,
        step_s=0.1,
        host_gap_s=None,
        num_generated_tokens=sum(gaps.values()),
        first_tokens=first,
        gaps=gaps,
    )


def test_quantiles_are_off_by_half_a_step_at_most() -> None:
    random.seed(1)
    seconds = sorted(random.lognormvariate(-4, 1) for _ in range(5000))
    pulse = Pulse()
    for value in seconds:
        pulse.on_step(step({value: 1}))
    for share in (0.01, 0.5, 0.95, 0.99):
        exact = seconds[round(share * len(seconds)) - 1]
        assert quantile(pulse.between_tokens.counts, share) == pytest.approx(exact, rel=0.08)


def test_without_values_there_is_no_quantile_and_the_longest_waits_have_one() -> None:
    assert quantile(Pulse().first_token.counts, 0.5) is None
    pulse = Pulse()
    pulse.on_step(step({}, first=(FirstToken(3, 0, 1e6),)))
    assert quantile(pulse.first_token.counts, 0.5) == FINE[-1]
    assert pulse.latest == SHAPE
