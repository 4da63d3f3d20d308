"""Processes that would make the same thing take turns: who comes later finds what the first has made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def turn(lock: Path) -> Iterator[None]:
    """One after the other, of the processes and threads that ask with this file; its directory is made for this user alone.

    One that ends, in whatever way, has had its turn. Where there is no locking, or no writing, all go at once.
    """
    try:
        lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = lock.open("wb")
    except OSError:
        yield
        return
    with file:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
