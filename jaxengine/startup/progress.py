"""What the start is doing: one line per phase with elapsed time, and an ETA where there is something to count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxengine.contract.messages import StartProgress

logger = logging.getLogger("jaxengine")


class Progress:
    """Writes the phases of a start, stamped with the seconds since it began.

    Args:
        tell: is told the same, on whatever thread.
    """

    def __init__(self, tell: Callable[[StartProgress], None] | None = None) -> None:
        self._tell = tell or (lambda _: None)
        self._started = time.perf_counter()
        self._phases: dict[str, float] = {}
        self._running: dict[str, float] = {}

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start began."""
        return time.perf_counter() - self._started

    @property
    def phases(self) -> dict[str, float]:
        """Seconds each finished phase took, in order."""
        return dict(self._phases)

    def say(self, phase: str, text: str) -> None:
        """One line: `[  1.2s] compile  ...`."""
        logger.info("[%5.1fs] %-8s %s", self.elapsed_s, phase, text)
        begun = self._running.get(phase)
        seconds = None if begun is None else time.perf_counter() - begun
        self._tell(StartProgress(phase=phase, seconds=seconds, text=text))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; it is recorded also when it fails."""
        before = self._phases.get(name, 0.0)
        begun = self._running[name] = time.perf_counter() - before
        self._tell(StartProgress(phase=name, seconds=before))
        try:
            yield
        finally:
            seconds = self._phases[name] = time.perf_counter() - begun
            self._running.pop(name, None)
            self._tell(StartProgress(phase=name, seconds=seconds, done=True))


class Countdown:
    """Counts `total` jobs of known relative cost done and says how long the rest will take."""

    def __init__(self, progress: Progress, phase: str, *, total: int, total_cost: float) -> None:
        self._progress = progress
        self._phase = phase
        self._total = total
        self._total_cost = total_cost
        self._done = 0
        self._done_cost = 0.0
        self._begun = time.perf_counter()

    def done(self, text: str, cost: float) -> None:
        """One more job is done. The estimate scales the time so far by the cost that is left."""
        self._done += 1
        self._done_cost += cost
        spent = time.perf_counter() - self._begun
        left = spent * max(0.0, self._total_cost - self._done_cost) / max(self._done_cost, 1e-9)
        self._progress.say(self._phase, f"{self._done}/{self._total} {text}, ETA {left:.0f} s")
