"""Who is given which request, and whose is what comes of it: cases that the simulator found."""

from __future__ import annotations

from itertools import count
from typing import Any

from jaxengine.contract.messages import Abort, Add, Done, Message, Pause
from jaxengine.contract.request import Request
from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.front.dispatcher import Dispatcher, least_loaded
from jaxengine.front.restarts import Restarts
from jaxengine.front.ward import State, Ward
from jaxengine.front.watch import Watch
from tests.harness import make_request


class Engine:
    """Notes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def open(self, emit: Any) -> None:
        """Nothing happens by itself."""

    def send(self, message: Message) -> None:
        self.sent.append(message)


class Rig:
    """A dispatcher with one engine."""

    def __init__(self) -> None:
        self.ward = Ward(0, Restarts(100))
        self.told: list[dict[str, Any]] = []
        self.dispatcher = Dispatcher(
            [self.ward],
            count(),
            lambda **news: self.told.append(news),
            choose=least_loaded,
            clock=lambda: 0.0,
            resume=True,
        )
        self.start()

    def start(self) -> None:
        self.engine: Any = Engine()
        self.ward.begin(self.engine, lambda *_: None, Watch(0.0, silence_s=0.0))
        self.ward.state = State.READY
        self.dispatcher.place()

    def die(self) -> None:
        self.dispatcher.lose(self.ward, State.WAITING, "step")
        self.start()

    def answer(self, add: Add) -> None:
        self.ward.asked.pop(add.number).answer(Done(add.number))

    @property
    def added(self) -> list[Add]:
        return [message for message in self.engine.sent if isinstance(message, Add)]


def request(name: str, first: int = 1) -> Request:
    return make_request(name, [first, 2, 3], max_tokens=4)


def update(name: str, *, position: int = 0, token: int = 7, ends: bool = False) -> SequenceUpdate:
    return SequenceUpdate(
        name, 0, (token,), (None,), Admission(), position=position, finish_reason="length" if ends else None
    )


def first_trial_of_two() -> tuple[Rig, str]:
    """Of "a" and "b", under suspicion after two deaths; and the name of the one that is tried."""
    rig = Rig()
    for name in ("a", "b"):
        rig.dispatcher.add(Add(0, (request(name),)))
    rig.die()
    rig.die()
    [tried] = rig.added
    rig.answer(tried)
    return rig, tried.requests[0].request_id


def test_a_suspect_that_ends_on_its_trial_makes_room_for_the_next() -> None:
    rig, name = first_trial_of_two()
    assert rig.dispatcher.take(rig.ward, (update(name, ends=True),))
    assert [add.requests[0].request_id for add in rig.added] == [name, {"a": "b", "b": "a"}[name]]


def test_a_suspect_that_rests_is_not_tried_and_goes_on_with_its_trial() -> None:
    rig = Rig()
    rig.dispatcher.add(Add(0, (request("a"),)))
    rig.die()
    rig.dispatcher.pause(Pause(("a",)))
    rig.die()
    assert not rig.added, "it does not run, so it is given to no engine"
    rig.dispatcher.pause(Pause(("a",), paused=False))
    [tried] = rig.added
    rig.answer(tried)
    rig.dispatcher.pause(Pause(("a",)))
    rig.dispatcher.pause(Pause(("a",), paused=False))
    assert rig.ward.tries
    rig.dispatcher.pause(Pause(("a",)))
    rig.dispatcher.add(Add(1, (request("b"),)))
    assert len(rig.added) == 2, "while it rests others need not wait for it"
    rig.dispatcher.pause(Pause(("a",), paused=False))
    assert not rig.ward.tries, "it has company"


def test_what_an_engine_tells_that_was_killed_clears_nobody_and_it_is_given_nothing_more() -> None:
    """Its step hung and ended after all, before its death was seen."""
    rig, name = first_trial_of_two()
    rig.ward.began.add(name)
    rig.ward.condemned = "hang"
    assert rig.dispatcher.take(rig.ward, (update(name), update(name, position=1)))
    rig.dispatcher.add(Add(3, (request("c", first=5),)))
    assert len(rig.added) == 1
    rig.die()
    [failed] = [failed for news in rig.told for failed in news.get("failed", ())]
    assert failed.request_id == name


def test_what_comes_of_a_request_is_not_taken_for_that_of_a_later_one_with_its_id() -> None:
    rig = Rig()
    rig.dispatcher.add(Add(0, (request("a"),)))
    rig.dispatcher.abort(Abort(("a",)))
    rig.dispatcher.add(Add(1, (request("a", first=9),)))
    before, after = rig.added
    rig.answer(before)
    assert rig.dispatcher.take(rig.ward, (update("a", token=50),)) == ()
    rig.answer(after)
    fresh = update("a", token=60)
    assert rig.dispatcher.take(rig.ward, (fresh,)) == (fresh,)


def test_an_engine_that_tells_of_nobody_that_it_ran_may_have_died_of_anyone() -> None:
    """What it said last is lost each time, that it began the request included."""
    rig = Rig()
    rig.dispatcher.add(Add(0, (request("killer"),)))
    rig.dispatcher.add(Add(1, (request("resting", first=5),)))
    rig.dispatcher.pause(Pause(("resting",)))
    for _ in range(4):
        assert not any("failed" in news for news in rig.told)
        for add in list(rig.added):
            if add.number in rig.ward.asked:
                rig.answer(add)
        rig.die()
    [failed] = [failed for news in rig.told for failed in news.get("failed", ())]
    assert failed.request_id == "killer"
