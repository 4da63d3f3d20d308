"""The programs that are still missing when an engine is ready: compiled in a thread while it serves, most wanted first."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping

from buckets import Bucket, ReadyShapes
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.programs import step_programs
from jaxengine.device.runtime.space import ProgramSpace
from xla_cache import Program, ProgramCache, obtain
from xla_cache.compiler import THREAD_STACK_BYTES
from xla_cache.events import planned_compilation

logger = logging.getLogger("jaxengine")


class BackgroundWarmup:
    """One thread, so that serving keeps the other cores. A shape is offered once all its programs exist, and not before.

    A program is not run on dummy rows here: its first real step warms it up, which costs no more, and the KV pool belongs to
    the engine's own thread.
    """

    def __init__(
        self,
        space: ProgramSpace,
        programs: Mapping[str, Program],
        executables: Executables,
        shapes: ReadyShapes,
        cache: ProgramCache | None,
    ) -> None:
        """`programs` are all programs of `space` by name, `executables` the table that grows."""
        self.shapes = shapes
        self._space = space
        self._programs = programs
        self._executables = executables
        self._cache = cache
        self._failed: set[Bucket] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin. Nothing happens where everything is ready already."""
        if all(name in self._executables for name in self._programs):
            return
        previous = threading.stack_size(THREAD_STACK_BYTES)
        try:
            self._thread = threading.Thread(target=self._run, name="background warm-up", daemon=True)
            self._thread.start()
        finally:
            threading.stack_size(previous)

    def close(self) -> None:
        """Stop after the program that is being compiled: the compiler cannot be interrupted."""
        self._stop.set()
        self.wait()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to compile; False when `timeout` seconds were not enough."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        begun = time.perf_counter()
        while not self._stop.is_set() and (shape := self.shapes.most_wanted(self._failed)) is not None:
            try:
                if self._obtain(step_programs(self._space, shape)):
                    self.shapes.add(shape)
            except Exception:
                self._failed.add(shape)
                logger.exception("the programs of %s do not compile; requests go on padding up to larger shapes", shape)
        if self.shapes.complete and self._obtain_rest():
            logger.info(
                "all %d shapes are ready, %.1f s after the engine was",
                len(self.shapes.planned),
                time.perf_counter() - begun,
            )

    def _obtain_rest(self) -> bool:
        """Sampling for fewer rows than any bucket has: until then it pads up."""
        try:
            return self._obtain(self._programs)
        except Exception:
            logger.exception("some sampling programs do not compile; requests go on padding up to larger ones")
            return False

    def _obtain(self, names: Iterable[str]) -> bool:
        """Obtain what is missing of these; False when told to stop meanwhile."""
        for name in names:
            if self._stop.is_set():
                return False
            if name not in self._executables:
                with planned_compilation():
                    compiled, _ = obtain(self._programs[name], self._cache)
                self._executables.add(name, compiled)
        return True
