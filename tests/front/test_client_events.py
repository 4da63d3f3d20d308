"""What the client is told: of one engine that does not die, whatever becomes of those that there are."""

from __future__ import annotations

from dataclasses import replace

from jaxengine.contract.messages import Done, EngineDead, Event, Lost, StepOutputs
from jaxengine.contract.metrics import NOTHING_YET
from jaxengine.errors import EngineDeadError
from jaxengine.front.client_events import ClientEvents
from jaxengine.front.restarts import Restarts
from jaxengine.front.ward import State, Ward


def listening(engines: int = 2) -> tuple[ClientEvents, list[Ward], list[Event]]:
    wards = [Ward(index, Restarts(1)) for index in range(engines)]
    events, heard = ClientEvents(wards), list[Event]()
    events.open(heard.append)
    return events, wards, heard


def outputs_of(engine: int, **options: object) -> StepOutputs:
    return StepOutputs(engine=engine, statistics=NOTHING_YET, busy=True, **options)  # type: ignore[arg-type]


def test_what_needs_no_change_is_passed_on_as_it_came() -> None:
    events, wards, heard = listening()
    outputs = outputs_of(1)
    events.pass_on(wards[1], outputs, outputs.updates)
    assert heard[0] is outputs


def test_replies_and_requests_that_go_on_elsewhere_are_not_for_the_client() -> None:
    events, wards, heard = listening()
    lost = (Lost("error", 2), Lost("abort", 1))
    outputs = outputs_of(0, replies=(Done(7),), lost=lost)
    events.pass_on(wards[1], outputs, outputs.updates)
    assert heard == [replace(outputs, engine=1, replies=(), lost=(lost[1],))]


def test_requests_that_no_engine_has_are_counted_where_the_first_one_is_missing_and_told_once() -> None:
    events, wards, heard = listening(engines=3)
    wards[0].state = State.READY
    wards[0].engine = object()  # type: ignore[assignment]
    for _ in range(2):
        events.count_waiting(5)
    assert [ward.statistics.scheduler.num_waiting for ward in wards] == [0, 5, 0]
    assert [event.engine for event in heard if isinstance(event, StepOutputs)] == [1]


def test_the_end_is_told_once() -> None:
    events, _, heard = listening()
    dead = EngineDead(EngineDeadError("gone"))
    for _ in range(2):
        events.end(dead)
    assert heard == [dead]
