"""Turns of a watch, which tells silence of others from its own: a process that stood still has heard nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

LATE_S = 1.5
"""A turn that comes so late is one of a process, or a machine, that was stopped for a while."""


def turns(closed: threading.Event, every_s: float) -> Iterator[bool]:
    """One each so many seconds until `closed`: whether this process stood still since the one before.

    What others send in that time waits to be read, and those on the same machine stood still with it.
    """
    while True:
        began = time.monotonic()
        if closed.wait(every_s):
            return
        yield time.monotonic() - began > every_s + LATE_S
