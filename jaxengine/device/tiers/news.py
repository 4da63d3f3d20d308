"""What has ended beside the steps, from the threads on which it did to the loop."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from jaxengine.contract.tiers import Ended, TierTraffic


class News:
    """Ends and failures, and what moved between tiers. Any thread may tell, the loop takes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ended: list[Ended] = []
        self._failure: Exception | None = None
        self._traffic: dict[str, TierTraffic] = {}

    def tell(self, ended: Ended) -> None:
        """Something has ended."""
        with self._changed:
            self._ended.append(ended)
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Something failed that must not: the loop is to hear it, of several the first."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def count(self, way: str, num_bytes: int, seconds: float) -> None:
        """So much went one way, such as `device to host`."""
        with self._changed:
            self._traffic[way] = self._traffic.get(way, TierTraffic()).plus(num_bytes, seconds)

    def take(self) -> Sequence[Ended]:
        """What has ended since this was called last.

        Raises:
            Exception: what has failed.
        """
        self.raise_failure()
        with self._changed:
            ended, self._ended = self._ended, []
            return ended

    def raise_failure(self) -> None:
        """Raise what has failed, if anything has."""
        with self._changed:
            if self._failure is not None:
                raise self._failure

    def wait(self, timeout_s: float) -> None:
        """Return when there is something to take, or after so many seconds."""
        with self._changed:
            if not self._ended and self._failure is None:
                self._changed.wait(timeout_s)

    @property
    def traffic(self) -> dict[str, TierTraffic]:
        """All that moved since the start, by way."""
        with self._changed:
            return dict(self._traffic)
