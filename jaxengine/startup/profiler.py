"""Traces of what devices and host do, by JAX's profiler: for TensorBoard's profile tab, xprof and Perfetto."""

from __future__ import annotations

import logging
import threading

import jax

from jaxengine.errors import RequestError

logger = logging.getLogger("jaxengine")


class Profiler:
    """Writes traces to a directory, one at a time. May be asked from any thread.

    Args:
        directory: where to; None where traces were not asked for.
    """

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._running = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin a trace.

        Raises:
            RequestError: one is running, or the engine was started without a directory for them.
        """
        with self._lock:
            if self._directory is None:
                raise RequestError("traces are off; start the engine with profile=DIR (--profile DIR)")
            if self._running:
                raise RequestError("a trace is being written already; stop it first")
            jax.profiler.start_trace(self._directory, create_perfetto_trace=True)
            self._running = True
            logger.info("a trace begins in %s", self._directory)

    def stop(self) -> None:
        """End the trace and write it, which may take seconds.

        Raises:
            RequestError: none is running.
        """
        with self._lock:
            if not self._running:
                raise RequestError("no trace is being written; start one first")
            self._running = False
            jax.profiler.stop_trace()
            logger.info("the trace is in %s", self._directory)

    def close(self) -> None:
        """End a trace that nobody ended."""
        if self._running:
            self.stop()
