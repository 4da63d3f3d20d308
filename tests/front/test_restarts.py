"""Engines that got to work start again at once, others after waits; after enough of them within an hour none does."""

from __future__ import annotations

from jaxengine.front.restarts import HOUR_S, LONGEST_WAIT_S, Restarts


def test_an_engine_that_worked_starts_at_once() -> None:
    restarts = Restarts(10)
    assert [restarts.next_wait(0.0, worked=True) for _ in range(4)] == [0.0] * 4


def test_waits_double_while_none_gets_to_work() -> None:
    restarts = Restarts(20)
    waits = [restarts.next_wait(0.0, worked=False) for _ in range(12)]
    assert waits[:5] == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert waits[-1] == LONGEST_WAIT_S
    assert restarts.next_wait(0.0, worked=True) == 0.0


def test_there_are_only_so_many_within_an_hour() -> None:
    restarts = Restarts(2)
    assert restarts.next_wait(0.0, worked=True) == 0.0
    assert restarts.next_wait(1.0, worked=True) == 0.0
    assert restarts.next_wait(2.0, worked=True) is None
    assert restarts.next_wait(HOUR_S + 0.5, worked=True) == 0.0
    assert restarts.count == 3
    assert Restarts(0).next_wait(0.0, worked=True) is None
