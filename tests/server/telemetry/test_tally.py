"""Bounds as vLLM's, and distributions that count as Prometheus reads them."""

from __future__ import annotations

import pytest

from jaxengine.server.telemetry.tally import STEP_TOKENS, Distribution, token_bounds


def test_bounds_of_tokens_are_1_2_5_decades() -> None:
    assert token_bounds(1000) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    assert token_bounds(4096)[-1] == 2000
    assert token_bounds(1) == (1,)


def test_bounds_of_a_step() -> None:
    assert STEP_TOKENS == (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def test_a_value_on_a_bound_belongs_to_it() -> None:
    distribution = Distribution((1, 2.5))
    for value in (0.5, 1, 2.5, 2.6):
        distribution.add(value)
    assert distribution.cumulative() == [("1.0", 2), ("2.5", 3), ("+Inf", 4)]
    assert distribution.count == 4
    assert distribution.total == pytest.approx(6.6)


def test_a_value_seen_several_times() -> None:
    distribution = Distribution((1,))
    distribution.add(0.25, times=8)
    assert (distribution.count, distribution.total) == (8, 2.0)
