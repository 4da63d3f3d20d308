"""Those who ask: each hands in requests, reads as fast as it likes, leaves when it likes, and may come back."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from jaxengine.front.async_client import AsyncClient
from tests.simulation.oracle import Received
from tests.simulation.scenario import Visit


@dataclass(slots=True)
class Outcome:
    """What became of a visit, if it was `accepted`: `error` ended it, or it `left` of its own will, or it got all."""

    received: list[Received]
    accepted: bool = False
    error: BaseException | None = None
    left: bool = False


@dataclass(slots=True)
class Client:
    """Pays a visit, and another one like it if it is to come again. `outcomes` has one entry for each."""

    visit: Visit
    outcomes: list[Outcome] = field(default_factory=list)

    async def run(self, engine: AsyncClient) -> None:
        """Come when it is time, and be cancelled when that is said."""
        loop = asyncio.get_running_loop()
        cancelled_at = loop.time() + self.visit.cancelled_at
        await asyncio.sleep(self.visit.at)
        for requests in filter(None, (self.visit.requests, self.visit.again)):
            outcome = Outcome([Received(request) for request in requests])
            self.outcomes.append(outcome)
            task = loop.create_task(self._ask(engine, outcome))
            timer = None
            if cancelled_at < math.inf:
                timer = loop.call_at(max(cancelled_at, loop.time()), task.cancel)
            [error] = await asyncio.gather(task, return_exceptions=True)
            if timer is not None:
                timer.cancel()
            outcome.left = outcome.left or isinstance(error, asyncio.CancelledError)
            outcome.error = None if outcome.left else error

    async def _ask(self, engine: AsyncClient, outcome: Outcome) -> None:
        visit, received = self.visit, {each.request.request_id: each for each in outcome.received}
        count = 0
        with await engine.submit([each.request for each in outcome.received]) as stream:
            outcome.accepted = True
            if visit.leaves_after == 0:
                outcome.left = True
                return
            async for outputs in stream:
                for output in outputs:
                    received[output.request_id].take(output)
                count += 1
                if count == visit.leaves_after:
                    outcome.left = True
                    return
                if visit.pause_s:
                    await asyncio.sleep(visit.pause_s)
