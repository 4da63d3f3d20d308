"""JAX's own disk cache, kept out of the way of ours.

An executable that came out of JAX's cache, serialised again, loads and then fails when it is called. So JAX's cache is off
while a program is compiled that will be kept, and should one come out of it all the same, that is noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.experimental.compilation_cache import compilation_cache

HIT = "/jax/compilation_cache/cache_hits"


class _Hits(threading.local):
    """How many executables this thread got from JAX's cache."""

    count = 0


class _Switch:
    """Off as long as any thread wants it off: JAX decides for the whole process whether it uses its cache."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._was = False
        self._listening = False

    def off(self) -> None:
        with self._lock:
            if not self._listening:
                jax.monitoring.register_event_listener(_count)
                self._listening = True
            self._users += 1
            if self._users == 1:
                in_use = jax.config.values["jax_compilation_cache_dir"] is not None
                self._was = in_use and bool(jax.config.values["jax_enable_compilation_cache"])
                if self._was:
                    self._set(False)

    def on(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._was:
                self._set(True)

    @staticmethod
    def _set(enabled: bool) -> None:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()  # what JAX found out about its cache before would hold otherwise


_SWITCH, _HITS = _Switch(), _Hits()


def _count(event: str, **metadata: str | int) -> None:
    if event == HIT:
        _HITS.count += 1


@contextmanager
def without_jax_cache() -> Iterator[None]:
    """JAX's disk cache is neither asked nor filled inside the block, in any thread."""
    _SWITCH.off()
    try:
        yield
    finally:
        _SWITCH.on()


def hits() -> int:
    """How many executables this thread has got from JAX's disk cache since the first `without_jax_cache`."""
    return _HITS.count
