"""How fast this machine reads its memory: what a step that reads all weights once is held against."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_MEMORY = np.ones(32 << 20, np.int64)  # 256 MiB
_NUM_THREADS = len(os.sched_getaffinity(0))
_THREADS = ThreadPoolExecutor(_NUM_THREADS)


def read_bandwidth(tries: int = 1) -> float:
    """Bytes per second at which all threads together read memory, at the best of some tries."""
    parts, taken = np.array_split(_MEMORY, _NUM_THREADS), []
    for _ in range(tries):
        begun = time.perf_counter()
        list(_THREADS.map(np.max, parts))
        taken.append(time.perf_counter() - begun)
    return _MEMORY.nbytes / min(taken)
