"""One direction of a pipe between two processes."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.event_loop import SimulatedLoop

LONGEST_S = 0.3
"""A delay that nobody takes for a death."""


class Pipe:
    """Carries values in order, pickled, each some time later. Delays are drawn: most are short and a few are long.

    Args:
        deliver: is given what arrives.
        delay_s: the usual delay.
    """

    def __init__(self, loop: SimulatedLoop, random: Random, deliver: Callable[[Any], None], *, delay_s: float) -> None:
        self._loop = loop
        self._random = random
        self._deliver = deliver
        self._delay_s = delay_s
        self._under_way: deque[bytes] = deque()
        self._last = 0.0
        self._closed = False

    def send(self, value: Any) -> None:
        """Write a value; nobody reads what is written after `close`."""
        if self._closed:
            return
        delay = self._random.expovariate(1.0) * self._delay_s
        if self._random.random() < 0.02:
            delay = min(50 * delay, LONGEST_S)
        self._last = max(self._last, self._loop.time() + delay)
        self._under_way.append(pickle.dumps(value))
        self._loop.call_at(self._last, self._arrive)

    def lose(self) -> None:
        """The writer dies: the last so many values that are under way are lost, anything from none to all."""
        for _ in range(self._random.randint(0, len(self._under_way))):
            self._under_way.pop()

    def close(self) -> None:
        """Nothing is written any more."""
        self._closed = True

    def _arrive(self) -> None:
        if self._under_way:
            self._deliver(pickle.loads(self._under_way.popleft()))
