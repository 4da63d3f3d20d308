"""The process of an engine whose steps fail when a signal says so: for `benchmarks.crashes`, which has servers start this one.

SIGUSR1: the next step raises. SIGUSR2: the next step takes memory until there is none left of what the process may have.

    python -m benchmarks.faulty_engine serve --port 8000        a server whose engines are such
"""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from jaxengine.contract.messages import Begin, Event
from jaxengine.host.engine.host import EngineHost
from jaxengine.startup.engine_process import serve

STEP, MEMORY = signal.SIGUSR1, signal.SIGUSR2
ROOM = 64 << 20
"""Bytes that are left of the process's memory when a step begins to take it."""


def main(descriptor: int) -> None:
    """What the process runs instead of the engine's own entry."""
    serve(descriptor, build)


def build(begin: Begin, emit: Callable[[Event], None]) -> EngineHost:
    from jaxengine.startup.build import build_engine

    host = build_engine(begin.config, tell=emit).host
    runner: Any = host.core._runner
    runner.launch = Faulty(runner.launch)
    return host


class Faulty:
    """A runner's `launch`, which fails after a signal."""

    def __init__(self, launch: Callable[..., Any]) -> None:
        self._launch = launch
        self._wanted: int | None = None
        for number in (STEP, MEMORY):
            signal.signal(number, self._want)

    def __call__(self, batch: Any) -> Any:
        if self._wanted == STEP:
            raise RuntimeError("a fault of the device, injected")
        if self._wanted == MEMORY:
            exhaust()
        return self._launch(batch)

    def _want(self, number: int, frame: object) -> None:
        self._wanted = number


def exhaust() -> None:
    """Take memory up to a limit that is close."""
    pages = int(open("/proc/self/statm", encoding="ascii").read().split()[0])  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM,) * 2)
    taken = []
    while True:
        taken.append(bytearray(1 << 20))


if __name__ == "__main__":
    from jaxengine import cli
    from jaxengine.front import engine_process

    engine_process.EngineProcess = partial(engine_process.EngineProcess, entry="benchmarks.faulty_engine")  # type: ignore[assignment,misc]
    sys.exit(cli.main(sys.argv[1:]))
