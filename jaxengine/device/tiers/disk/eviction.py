"""What goes when the files of all engines are more than they may be: those that were not of use for longest."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Callable

import numpy as np

from jaxengine.device.tiers.disk.directory import BlockDirectory


def measure(directory: BlockDirectory, pause: Callable[[], bool]) -> tuple[array[int], array[int]]:
    """Time of last use (ns) and size of every block. `pause` is called now and then, and ends it by saying True."""
    times, sizes = array("q"), array("q")
    for number, file in enumerate(directory.files()):
        if number % 64 == 63 and pause():
            break
        try:
            status = file.stat(follow_symlinks=False)
        except OSError:  # another engine was faster
            continue
        if stat.S_ISREG(status.st_mode):
            times.append(status.st_mtime_ns)
            sizes.append(status.st_size)
    return times, sizes


def evict(
    directory: BlockDirectory, times: array[int], sizes: array[int], to_free: int, pause: Callable[[], bool]
) -> int:
    """Remove the blocks that `measure` found not to be of use for longest, at least `to_free` bytes of them; how many bytes.

    One that has been of use since then stays. Engines that evict at once remove the same ones, and not twice as many.
    """
    ages = np.frombuffer(times, np.int64)
    order = np.argsort(ages, kind="stable")
    freed_by = np.cumsum(np.frombuffer(sizes, np.int64)[order])
    last = int(np.searchsorted(freed_by, to_free))
    newest = int(ages[order[min(last, len(order) - 1)]]) if len(order) else 0
    freed = 0
    for number, file in enumerate(directory.files()):
        if freed >= to_free or (number % 64 == 63 and pause()):
            break
        try:
            status = file.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_mtime_ns <= newest:
                freed += status.st_size
                os.unlink(file.path)
        except FileNotFoundError:
            continue
    return freed
