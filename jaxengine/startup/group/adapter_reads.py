"""Adapters that a host which follows reads beside the steps that it repeats, as the first host does."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from jaxengine.contract.runner import Runner

logger = logging.getLogger("jaxengine")


class AdapterReads:
    """Reads, one after another in the order of their calls, on a thread of their own.

    Args:
        runner: reads the adapter of a directory to this host's memory.
        report: is told the number of a call that failed, and the error.
    """

    def __init__(self, runner: Runner, report: Callable[[int, str], None]) -> None:
        self._runner, self._report = runner, report
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapters")
        self._open: deque[Future[None]] = deque()
        self._there: set[str] = set()

    def begin(self, number: int, path: str) -> None:
        """Read one, whose call has this number; return without waiting."""
        self._open.append(self._thread.submit(self._read, number, path))

    def wait(self, digest: str) -> None:
        """Until this one is there, or all that were begun have ended without it."""
        while digest not in self._there and self._open:
            self._open.popleft().result()

    def close(self) -> None:
        """Give up those that have not begun."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _read(self, number: int, path: str) -> None:
        try:
            self._there.add(self._runner.load_adapter(path))
        except Exception as error:
            logger.exception("call %d of the first host (load_adapter) has failed here", number)
            self._report(number, f"load_adapter: {type(error).__name__}: {error}")
