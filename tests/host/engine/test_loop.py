"""The loop, turn by turn: whoever runs the turns sees each step's events before the next, and the last turn is known as such."""

from __future__ import annotations

from collections import Counter
from queue import SimpleQueue
from typing import Any

import pytest

from jaxengine.contract.messages import (
    Abort,
    Add,
    Began,
    Close,
    Done,
    EngineDead,
    Event,
    Message,
    Pause,
    PauseGeneration,
    ResumeGeneration,
    StepOutputs,
)
from jaxengine.host.engine.loop import EngineLoop
from tests.harness import Rig, make_request
from tests.host.engine.test_host import make_host


class Turned:
    """A loop whose turns are run here, what it told in the last one, and how many tokens each request has."""

    def __init__(self, **options: Any) -> None:
        self.rig = Rig(**options)
        self.messages: SimpleQueue[Message] = SimpleQueue()
        self.events: list[Event] = []
        self.tokens: Counter[str] = Counter()
        self._loop = EngineLoop(make_host(self.rig), self.messages, self._take)

    def turn(self) -> bool:
        self.events.clear()
        return self._loop.turn(wait=False)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, StepOutputs):
            self.tokens.update({update.request_id: len(update.token_ids) for update in event.updates})


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


def test_what_is_asked_of_requests_that_wait_is_done_once_they_are_in() -> None:
    turned = Turned()
    turned.messages.put(Add(0, (make_request("first", range(5), max_tokens=2),)))
    assert turned.turn()
    turned.messages.put(PauseGeneration(1, "wait"))
    turned.messages.put(
        Add(2, tuple(make_request(name, range(5), max_tokens=3) for name in ("stopped", "paused", "runs")))
    )
    turned.messages.put(Abort(stopped=(("stopped", 0), ("gone", 0))))
    turned.messages.put(Pause(("paused", "gone")))
    turned.messages.put(ResumeGeneration(3))
    for _ in range(9):
        assert turned.turn()
    assert turned.tokens == {"first": 2, "runs": 3}
    turned.messages.put(Pause(("paused",), paused=False))
    for _ in range(6):
        assert turned.turn()
    assert turned.tokens == {"first": 2, "runs": 3, "paused": 3}


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
