"""Nothing may compile during a step: what does is counted, named, and a warning or the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from jaxengine.errors import UnplannedShapeError
from xla_cache.events import measured_phases

logger = logging.getLogger("jaxengine")


class CompileGuard:
    """Watches the thread that runs the steps, and only it: programs that other threads compile make nobody wait.

    With `error` a step that compiled anything fails, and with it the engine: it would go on being slow at random. With `warn` the
    step counts and the log says what was compiled. `num_violations` counts steps.
    """

    def __init__(self, action: str) -> None:
        self._action = action
        self.num_violations = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Watch one step.

        Raises:
            UnplannedShapeError: with `error`, something was compiled.
        """
        with measured_phases() as phases:
            yield
        if not phases.compilations:
            return
        self.num_violations += 1
        message = (
            f"{', '.join(phases.names)} compiled for {phases.compile_s:.1f} s during a step, while requests waited: "
            "a program that was not planned. Please report it"
        )
        if self._action == "error":
            raise UnplannedShapeError(f"{message}; --compile-guard warn goes on all the same")
        logger.warning("%s", message)
