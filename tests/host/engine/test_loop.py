"""The loop, turn by turn: whoever runs the turns sees each step's events before the next, and the last turn is known as such."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import pytest

from jaxengine.contract.messages import Add, Began, Close, Done, EngineDead, Event, Message, StepOutputs
from jaxengine.host.engine.loop import EngineLoop
from tests.harness import Rig, make_request
from tests.host.engine.test_host import make_host


class Turned:
    """A loop whose turns are run here, and what it told in the last one."""

    def __init__(self, **options: Any) -> None:
        self.rig = Rig(**options)
        self.messages: SimpleQueue[Message] = SimpleQueue()
        self.events: list[Event] = []
        self._loop = EngineLoop(make_host(self.rig), self.messages, self.events.append)

    def turn(self) -> bool:
        self.events.clear()
        return self._loop.turn(wait=False)


def test_a_turn_is_at_most_one_step() -> None:
    turned = Turned()
    assert turned.turn()
    assert not turned.events
    turned.messages.put(Add(0, (make_request("a", range(5), max_tokens=3),)))
    steps = []
    while turned.turn() and turned.events:
        steps.append(turned.rig.runner.steps)
        told = [event for event in turned.events if isinstance(event, StepOutputs)]
        assert all(isinstance(event, StepOutputs | Began) for event in turned.events)
        assert [reply for event in told for reply in event.replies] == ([Done(0)] if len(steps) == 1 else [])
    assert steps[:3] == [1, 2, 3]


@pytest.mark.parametrize("fails", [False, True])
def test_the_last_turn_closes_the_core_and_tells_of_the_end(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    turned = Turned()
    turned.messages.put(Add(0, (make_request("a", range(5)),)))
    assert turned.turn()
    if fails:
        monkeypatch.setattr(turned.rig.runner, "launch", lambda batch: 1 / 0)
    else:
        turned.messages.put(Close())
    assert not turned.turn()
    assert isinstance(turned.events[-1], EngineDead)
    assert turned.rig.runner.closed
