"""What programs take, as far as other work on the machine lets that be seen."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import jax

from jaxengine.device.runtime.forward import Call


class ProgramTimes:
    """Calls programs by `call` and keeps the seconds of each, by its name: the least, as other work only makes them longer.

    Those that run `on_threads` of this process take at most what all threads together work, as one of them always does. On a
    machine whose processors others share that is nearer: three times, beside fifteen times as much work as there were processors
    for, the least of a step's times was 84 to 287 ms, and of its threads' 10 to 12.
    """

    def __init__(self, call: Call, *, on_threads: bool = False) -> None:
        self.least: dict[str, float] = {}
        self._call = call
        self._on_threads = on_threads

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Call a program and wait for it."""
        begun, worked = time.perf_counter(), time.process_time()
        result = jax.block_until_ready(self._call(name, *arguments))
        worked, taken = time.process_time() - worked, time.perf_counter() - begun
        if self._on_threads:
            taken = min(taken, worked)
        self.least[name] = min(self.least.get(name, math.inf), taken)
        return result

    def rounds(self, count: int, *, most_s: float) -> Iterator[int]:
        """Go through all programs `count` times, or for about `most_s` seconds where nothing else runs and one host is all."""
        for number in range(count):
            if number * sum(self.least.values()) > most_s and jax.process_count() == 1:
                return
            yield number
