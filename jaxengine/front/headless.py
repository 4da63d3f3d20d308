"""A host without requests of its own: its part of an engine is kept running, for the first host to use."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import replace

from jaxengine.contract.channel import Channel
from jaxengine.contract.messages import EngineDead, EngineReady, Event
from jaxengine.front.restarts import Supervision
from jaxengine.front.supervisor import Supervisor

logger = logging.getLogger("jaxengine")

FOLLOWER = "jaxengine.startup.follower_process"
"""The module whose `main` the process of a host runs that follows the first. It is named and not imported: it loads JAX."""

SILENCE_S = 10.0
"""A little longer than the first host waits for a sign of life, which has said so by then: there is no engine to go back to."""

AFTER_S = 5.0
"""How much later than the first host's requests this host may end, when all are told to end at once."""


def run_headless(launch: Callable[[int], Channel], *, options: Supervision, shutdown_s: float) -> int:
    """Start this host's part, and start it again whenever the engine ends, until SIGINT or SIGTERM; the exit status.

    A part that gives no sign of life for `SILENCE_S` is ended and started again: the first host has given it up by then.

    The first signal lets the first host's requests finish, which it is told at the same time as a rule: the part runs until that
    host closes the engine, and `shutdown_s` at most. The second signal ends it at once.
    """
    return asyncio.run(_Headless(launch, options, shutdown_s).run())


class _Headless:
    def __init__(self, launch: Callable[[int], Channel], options: Supervision, shutdown_s: float) -> None:
        self._launch, self._shutdown_s = launch, shutdown_s
        self._over = asyncio.Event()
        self._stopping = False
        self._status = 0
        self._part: Channel = launch(0)
        options = replace(options, silence_s=min(options.silence_s, SILENCE_S))
        self._supervisor = Supervisor([self._part], self._again, options=options)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, number)
        self._supervisor.open(self._take)
        try:
            await self._over.wait()
        finally:
            self._supervisor.kill()
            self._supervisor.close()
        return self._status

    def _again(self, index: int) -> Channel:
        self._part = self._launch(index)
        return self._part

    def _take(self, event: Event) -> None:
        if isinstance(event, EngineReady):
            logger.info("this host has its part of the engine, and follows the first host")
        if isinstance(event, EngineDead):
            logger.error("%s", event.start_error or event.error)
            self._status = 1
            self._over.set()

    def _stop(self, number: int) -> None:
        if self._stopping or not self._supervisor.condition.engines[0].ready:
            self._over.set()
            return
        self._stopping = True
        loop = asyncio.get_running_loop()
        loop.call_later(self._shutdown_s + AFTER_S, self._over.set)
        logger.info(
            "%s: this host ends with the first one, or in %g s; again to stop at once",
            signal.Signals(number).name,
            self._shutdown_s + AFTER_S,
        )
        self._end_with_part()

    def _end_with_part(self) -> None:
        """Look until the part has ended by itself."""
        if not self._part.is_alive or not self._supervisor.condition.engines[0].ready:
            self._over.set()
        else:
            asyncio.get_running_loop().call_later(0.1, self._end_with_part)
