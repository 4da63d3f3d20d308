"""How far a load is and how fast it goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How far a load is. The last report of a load has `bytes_read == total_bytes`."""

    num_read: int
    num_tensors: int
    bytes_read: int
    total_bytes: int
    seconds: float

    @property
    def gigabytes_per_s(self) -> float:
        """Checkpoint bytes read per second, in units of 10^9."""
        return self.bytes_read / max(self.seconds, 1e-9) / 1e9

    def __str__(self) -> str:
        return (
            f"{self.num_read}/{self.num_tensors} tensors, {self.bytes_read / 1e9:.2f} of {self.total_bytes / 1e9:.2f} GB "
            f"in {self.seconds:.1f} s ({self.gigabytes_per_s:.2f} GB/s)"
        )


Progress = Callable[[LoadReport], None]


class Tracker:
    """Counts tensors done and reports each to `progress`."""

    def __init__(self, sizes: Sequence[int], progress: Progress | None) -> None:
        self._num_tensors, self._total_bytes = len(sizes), sum(sizes)
        self._num_read = self._bytes_read = 0
        self._progress = progress
        self._begun = time.perf_counter()
        self._lock = threading.Lock()

    def add(self, nbytes: int, *, num_tensors: int = 1) -> None:
        """`num_tensors` more tensors of together `nbytes` are on their devices."""
        with self._lock:
            self._num_read += num_tensors
            self._bytes_read += nbytes
            if self._progress is not None:
                seconds = time.perf_counter() - self._begun
                self._progress(
                    LoadReport(self._num_read, self._num_tensors, self._bytes_read, self._total_bytes, seconds)
                )
