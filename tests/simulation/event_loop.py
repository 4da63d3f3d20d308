"""An event loop whose time is simulated, and whose ready callbacks run in an order drawn from a seed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop
from random import Random
from typing import Any
from unittest import mock

REAL_CLOCK = time.monotonic
MOST_AT_ONCE = 100_000
"""Callbacks that may run before time goes on."""


class StuckError(Exception):
    """Nothing is ready and no timer will ever make anything ready, or callbacks follow each other without end."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """Time stands still while callbacks run, and jumps to the next timer when none is ready.

    Of what is ready any may be next, as if other threads and sockets had come in between; only the callbacks of one object
    keep their order, as those of one socket or task do.

    Args:
        random: decides the order.
        read_s: what one look at `time.monotonic` costs: a stand-in for the time that code takes.

    Attributes:
        errors: what callbacks raised, which nobody else would hear of.
    """

    def __init__(self, random: Random, *, read_s: float = 0.0) -> None:
        super().__init__()
        self.errors: list[str] = []
        self._random = random
        self._read_s = read_s
        self._now = 0.0
        self._of_thread = threading.get_ident()
        self._at_once = 0
        self.set_exception_handler(self._note_error)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def read_clock(self) -> float:
        """What `time.monotonic` says; to threads that other tests have left, what it always says."""
        if threading.get_ident() != self._of_thread:
            return REAL_CLOCK()
        self._now += self._read_s
        return self._now

    def stall(self, seconds: float) -> None:
        """Something keeps this thread busy for so long."""
        self._now += seconds

    @property
    def num_timers(self) -> int:
        """Timers that will still fire."""
        return sum(not handle.cancelled() for handle in self._scheduled)

    def timers_of(self, kind: type) -> int:
        """Of these, those that call an object of this kind."""
        return sum(not timer.cancelled() and isinstance(_owner(timer), kind) for timer in self._scheduled)

    def _run_once(self) -> None:
        """Run one callback."""
        self._take_due()
        if not self._ready:
            if not self._scheduled:
                raise StuckError("everybody waits for somebody, and no timer runs")
            if self._scheduled[0].when() > self._now:
                self._now, self._at_once = self._scheduled[0].when(), 0
            self._take_due()
        self._at_once += 1
        if self._at_once > MOST_AT_ONCE:
            self._at_once = 0
            raise StuckError("callbacks follow each other and time stands still")
        handle = self._draw()
        if not handle.cancelled():
            handle._run()

    def _take_due(self) -> None:
        timers = self._scheduled
        while timers and (timers[0].cancelled() or timers[0].when() <= self._now):
            handle = heappop(timers)
            handle._scheduled = False
            if not handle.cancelled():
                self._ready.append(handle)

    def _draw(self) -> asyncio.Handle:
        first = {}
        for place, handle in enumerate(self._ready):
            first.setdefault(id(_owner(handle)), place)
        place = self._random.choice(list(first.values()))
        handle = self._ready[place]
        del self._ready[place]
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the heap until its time."""

    def _write_to_self(self) -> None:
        """There is no selector to wake: `call_soon_threadsafe` is called on this thread alone."""

    def _note_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context['message']}: {context.get('exception')!r}")


def _owner(handle: asyncio.Handle) -> object:
    """Whose callback it is."""
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    return callback if owner is None else owner


@contextmanager
def simulated_time(loop: SimulatedLoop) -> Iterator[None]:
    """Let `time.monotonic` be the loop's time, for all code that looks it up when it is called."""
    with mock.patch.object(time, "monotonic", loop.read_clock):
        yield
