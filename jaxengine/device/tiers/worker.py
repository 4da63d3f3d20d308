"""Threads that do one thing after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue


class Worker:
    """Does what it is given, in order where it has one thread. Threads are started with the first task.

    Args:
        name: of the threads.
        failed: is told of an error that a task raises, on its thread; tasks that follow are still done.
        threads: how many tasks are done at once.
    """

    def __init__(self, name: str, failed: Callable[[Exception], None], *, threads: int = 1) -> None:
        self._name = name
        self._failed = failed
        self._num_threads = threads
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def submit(self, task: Callable[[], None]) -> None:
        """Do this after what was submitted before."""
        with self._lock:
            if not self._threads:
                self._threads = [
                    threading.Thread(target=self._run, name=self._name, daemon=True) for _ in range(self._num_threads)
                ]
                for thread in self._threads:
                    thread.start()
        self._tasks.put(task)

    def close(self, timeout_s: float | None = None) -> None:
        """End after what was submitted, and wait for that, or no longer than so many seconds. Closing twice is fine."""
        with self._lock:
            threads, self._threads = self._threads, []
        for _ in threads:
            self._tasks.put(None)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception as error:
                self._failed(error)
