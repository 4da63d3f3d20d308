"""Streams of a real server whose engine is killed, stopped, fails or runs out of memory are those of one that lives."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.crashes import FAULTS, compare

pytestmark = pytest.mark.rare


@pytest.mark.parametrize("fault", FAULTS)
def test_every_stream_is_that_of_an_undisturbed_run(fault: str) -> None:
    report = asyncio.run(compare(fault, 3, streams=40, tokens=200))
    assert report["engine_restarts_total"] >= 3
    assert report["requests_resumed_total"] > 0
    assert report["requests_poisoned_total"] == 0
