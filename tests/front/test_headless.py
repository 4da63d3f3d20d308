"""A host that follows another: its part of the engine starts again with the first host, and that is no failure of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import EngineDead, EngineReady, Event, Message
from jaxengine.contract.metrics import UNSUPERVISED, Condition
from jaxengine.errors import EngineDeadError
from jaxengine.front.restarts import Supervision
from jaxengine.front.supervisor import Supervisor


class Part:
    """A host's part of an engine that is ready at once, and ends when the test says so."""

    facts = EngineFacts(vocab_size=8, max_model_len=8)
    condition: Condition = UNSUPERVISED
    is_alive = True

    def __init__(self) -> None:
        self.emit: Callable[[Event], None] = lambda event: None

    def open(self, emit: Callable[[Event], None]) -> None:
        self.emit = emit
        emit(EngineReady(self.facts))

    def end(self, *, elsewhere: bool) -> None:
        self.is_alive = False
        self.emit(EngineDead(EngineDeadError("the first host has closed the engine"), elsewhere=elsewhere))

    def send(self, message: Message) -> None: ...
    def join(self, timeout_s: float) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("elsewhere", [True, False])
def test_an_end_that_another_host_chose_counts_as_no_death(elsewhere: bool, caplog: pytest.LogCaptureFixture) -> None:
    parts: list[Part] = []

    def launch(index: int) -> Part:
        parts.append(Part())
        return parts[-1]

    async def scenario() -> dict[str, int]:
        supervisor = Supervisor([launch(0)], launch, options=Supervision(silence_s=0.0, max_restarts=1))
        supervisor.open(lambda event: None)
        for count in range(2, 5):
            await asyncio.sleep(0.01)
            parts[-1].end(elsewhere=elsewhere)
            end = asyncio.get_running_loop().time() + (5.0 if elsewhere or count == 2 else 0.1)
            while len(parts) < count and asyncio.get_running_loop().time() < end:
                await asyncio.sleep(0.01)
            if len(parts) < count:
                break
        deaths = supervisor.condition.engines[0].deaths
        supervisor.close()
        return dict(deaths)

    with caplog.at_level(logging.INFO, "jaxengine"):
        deaths = asyncio.run(scenario())
    assert len(parts) == (4 if elsewhere else 2)
    assert deaths == ({} if elsewhere else {"exit": 2})
    errors = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert bool(errors) == (not elsewhere)
    assert ("starts again: the first host has closed the engine" in caplog.text) == elsewhere
