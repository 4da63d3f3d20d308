"""Orders and shares as plain numbers."""

from __future__ import annotations

import pytest

from jaxengine.host.scheduler.policy import URGENCY, prompt_shares, reserve_pages, spare_rows
from tests.harness import make_request


def test_fcfs_looks_at_the_order_of_adding_only() -> None:
    early, late = make_request("early", [1], arrival=9.0), make_request("late", [1], arrival=1.0)
    assert URGENCY["fcfs"](early, 0, 3) < URGENCY["fcfs"](late, 1, 0)


def test_priority_comes_before_arrival_and_arrival_before_the_order_of_adding() -> None:
    urgency = URGENCY["priority"]
    requests = [
        make_request("low", [1], priority=2, arrival=0.0),
        make_request("late", [1], priority=1, arrival=5.0),
        make_request("early", [1], priority=1, arrival=4.0),
        make_request("negative", [1], priority=-1, arrival=9.0),
    ]
    order = sorted(requests, key=lambda request: urgency(request, requests.index(request), 0))
    assert [request.request_id for request in order] == ["negative", "early", "late", "low"]


@pytest.mark.parametrize(
    ("left", "threshold", "expected"),
    [([50], 8, [50]), ([50, 3], 8, [8, 3]), ([50, 30], 0, [50, 30]), ([], 8, [])],
)
def test_the_threshold_caps_prompts_that_are_not_alone(left: list[int], threshold: int, expected: list[int]) -> None:
    assert prompt_shares(left, threshold=threshold) == expected


@pytest.mark.parametrize(
    ("rows", "max_rows", "max_tokens", "expected"),
    [(1, 8, 100, 7), (8, 8, 100, 0), (2, 8, 8, 3), (8, 8, 8, 0)],
)
def test_spare_rows_leave_half_of_the_tokens(rows: int, max_rows: int, max_tokens: int, expected: int) -> None:
    assert spare_rows(rows=rows, max_rows=max_rows, max_tokens=max_tokens) == expected


@pytest.mark.parametrize(("capacity", "running", "expected"), [(10, 0, 0), (10, 5, 1), (1000, 5, 5), (1000, 50, 10)])
def test_reserved_pages(capacity: int, running: int, expected: int) -> None:
    assert reserve_pages(capacity, running=running) == expected
