"""How a store behaves whose medium fails: it is left alone for a while, longer each time, and the log says so once in a while."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("jaxengine")

FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0
WARN_EVERY_S = 60.0


class Rest:
    """Says whether to leave something alone that has failed. Any thread may use it.

    Args:
        clock: seconds, for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until = float("-inf")
        self._length = 0.0

    @property
    def resting(self) -> bool:
        """Whether it should not be tried yet."""
        return self._clock() < self._until

    def failed(self) -> None:
        """It failed: rest, twice as long as the last time unless it has worked since."""
        with self._lock:
            if not self.resting:  # else others failed while it began
                self._length = min(max(2 * self._length, FIRST_REST_S), LONGEST_REST_S)
                self._until = self._clock() + self._length

    def worked(self) -> None:
        """It worked: forget how often it failed."""
        if self._length:
            with self._lock:
                self._length = 0.0


class RareWarnings:
    """Warnings of which the log gets one of a kind each minute, with how many there were since the last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._quiet: dict[str, tuple[float, int]] = {}

    def warn(self, kind: str, message: str, *values: object) -> None:
        """Log `message % values`, unless one of its kind was logged within the last minute."""
        with self._lock:
            until, missed = self._quiet.get(kind, (float("-inf"), 0))
            if self._clock() < until:
                self._quiet[kind] = until, missed + 1
                return
            self._quiet[kind] = self._clock() + WARN_EVERY_S, 0
        more = f" ({missed} more like this since the last warning)" if missed else ""
        logger.warning(message + "%s", *values, more)
