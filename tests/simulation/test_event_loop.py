"""Simulated time: it jumps from timer to timer, and of what is ready anything may come first."""

from __future__ import annotations

import asyncio
import time
from random import Random
from threading import Thread

import pytest

from tests.simulation.event_loop import REAL_CLOCK, SimulatedLoop, StuckError, simulated_time


def order_of(seed: int) -> list[str]:
    """In which order ten tasks run, of which each has two turns."""
    loop = SimulatedLoop(Random(seed))
    order: list[str] = []

    async def task(name: int) -> None:
        order.append(f"{name}a")
        await asyncio.sleep(0)
        order.append(f"{name}b")

    async def all_of_them() -> None:
        await asyncio.gather(*(task(name) for name in range(10)))

    loop.run_until_complete(all_of_them())
    loop.close()
    return order


def test_the_order_is_the_seed_s() -> None:
    assert order_of(1) == order_of(1)
    assert len({tuple(order_of(seed)) for seed in range(20)}) == 20


def test_callbacks_of_one_object_keep_their_order() -> None:
    for seed in range(20):
        loop, found = SimulatedLoop(Random(seed)), list[int]()

        async def scenario(loop: SimulatedLoop = loop, found: list[int] = found) -> None:
            for number in range(5):
                loop.call_soon(found.append, number)
            await asyncio.sleep(1)

        loop.run_until_complete(scenario())
        loop.close()
        assert found == [0, 1, 2, 3, 4]


def test_time_is_that_of_timers_and_of_looks_at_the_clock() -> None:
    loop = SimulatedLoop(Random(0), read_s=0.25)

    async def scenario() -> float:
        before = time.monotonic()
        await asyncio.sleep(3600)
        return time.monotonic() - before

    with simulated_time(loop):
        assert loop.run_until_complete(scenario()) == pytest.approx(3600.25)
    loop.close()


def test_another_thread_looks_at_the_real_clock() -> None:
    loop, found = SimulatedLoop(Random(0), read_s=0.25), list[float]()
    with simulated_time(loop):
        before = REAL_CLOCK()
        thread = Thread(target=lambda: found.append(time.monotonic()))
        thread.start()
        thread.join()
    assert before <= found[0] <= REAL_CLOCK()
    assert loop.time() == 0
    loop.close()


def test_nobody_waits_for_ever() -> None:
    loop = SimulatedLoop(Random(0))
    waiting = loop.create_future()
    with pytest.raises(StuckError):
        loop.run_until_complete(waiting)
    loop.close()


def test_what_a_callback_raises_is_noted() -> None:
    loop = SimulatedLoop(Random(0))
    loop.call_soon(lambda: 1 / 0)
    loop.run_until_complete(asyncio.sleep(1, loop.create_future()))
    loop.close()
    assert "ZeroDivisionError" in loop.errors[0]
