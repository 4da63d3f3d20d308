"""One snapshot a second, made once for all who watch: viewers cost the engine nothing, and the event loop a write each."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from jaxengine.errors import JaxEngineError
from jaxengine.server.http.stream import event
from jaxengine.server.pages.snapshot import SERIES, counts, facts
from jaxengine.server.service import Service
from jaxengine.server.telemetry.pulse import quantile
from jaxengine.server.telemetry.tally import Distribution

INTERVAL_S = 1.0
KEPT_S = 300
"""Seconds of numbers that are kept for who comes later."""
WINDOW_S = 10
"""Seconds whose first tokens and gaps the percentiles are of."""

END = b"event: end\ndata: {}\n\n"


class Feed:
    """Makes the snapshots, from when the engine starts until it is closed."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._past: deque[list[Any]] = deque(maxlen=int(KEPT_S / INTERVAL_S))
        self._compiled: deque[tuple[float, int]] = deque(maxlen=100)
        self._num_compilations = 0
        self._windows = {"first_token": _Window(), "between_tokens": _Window()}
        self._latest = b""
        self._problem: str | None = None
        self._ticked = asyncio.Event()
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._tick()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End, and end the streams of all viewers."""
        self._ended = True
        self._ticked.set()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def events(self) -> AsyncIterator[bytes]:
        """Facts and the past, then every snapshot; a viewer that reads slowly misses some.

        One that tells of a problem is the last: viewers come back, and a server that ends does not wait for them.
        """
        kept = {"kept": self._past.maxlen, "past": list(self._past), "compiled": list(self._compiled)}
        yield event({"facts": {**facts(self._service), **kept}})
        if self._problem is not None:
            await self._ticked.wait()  # it may be over by then
        while not self._ended:
            ticked = self._ticked
            yield self._latest
            if self._problem is not None:
                return
            await ticked.wait()

    async def _run(self) -> None:
        while not self._ended:
            await asyncio.sleep(INTERVAL_S)
            self._tick()

    def _tick(self) -> None:
        self._problem = self._find_problem()
        snapshot = self._snapshot()
        self._past.append([snapshot[name] for name in SERIES])
        gained = snapshot["compilations"] - self._num_compilations
        if gained > 0:  # an engine that was started again begins with none
            self._compiled.append((snapshot["now"], gained))
        self._num_compilations += gained
        self._latest = event(snapshot)
        self._ticked.set()
        self._ticked = asyncio.Event()

    def _snapshot(self) -> dict[str, Any]:
        service = self._service
        snapshot = {
            "now": time.time(),
            **counts(service.engines(), service.pulses),
            "problem": self._problem,
        }
        for name, window in self._windows.items():
            recent = window.move([getattr(pulse, name) for pulse in service.pulses])
            for percent in (50, 95):
                snapshot[f"{name}_p{percent}"] = quantile(recent, percent / 100)
        return snapshot

    def _find_problem(self) -> str | None:
        """Why the engine cannot be trusted with a request: it has ended, hangs, or is about to stop."""
        try:
            self._service.engine.check_health()
        except JaxEngineError as error:
            return str(error)
        return None


class _Window:
    """What distributions of one kind gained in the last `WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._before: deque[list[int]] = deque(maxlen=int(WINDOW_S / INTERVAL_S))

    def move(self, distributions: Sequence[Distribution]) -> list[int]:
        """Note how their sum stands, and return what it has more than when this was called `WINDOW_S` seconds ago."""
        now = [sum(counts) for counts in zip(*(each.counts for each in distributions), strict=True)]
        before = self._before[0] if self._before else now
        self._before.append(now)
        return [new - old for new, old in zip(now, before, strict=True)]
