"""What programs take, as far as other work on the machine lets that be seen."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import jax

from jaxengine.device.runtime.forward import Call

ROUNDS, MOST_S = 7, 2.0


class ProgramTimes:
    """Calls programs by `call` and keeps the seconds of each, by its name: the least, as other work only makes them longer."""

    def __init__(self, call: Call) -> None:
        self.least: dict[str, float] = {}
        self._call = call

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Call a program and wait for it."""
        begun = time.perf_counter()
        result = jax.block_until_ready(self._call(name, *arguments))
        self.least[name] = min(self.least.get(name, math.inf), time.perf_counter() - begun)
        return result

    def rounds(self) -> Iterator[int]:
        """Go through all programs so often, or for about two seconds where nothing else runs and one host is all."""
        for number in range(ROUNDS):
            if number * sum(self.least.values()) > MOST_S and jax.process_count() == 1:
                return
            yield number
