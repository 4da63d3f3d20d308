"""What an engine was asked for is asked of the next one in its place, so that it is where the one before it was."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

from jaxengine.contract.messages import (
    TAGS,
    Done,
    PauseGeneration,
    Question,
    Refused,
    ResumeGeneration,
    Sleep,
    Update,
    Wake,
)
from jaxengine.front.questions import Questions, answer_of_the_dead, to_bring_up
from jaxengine.front.restarts import Restarts
from jaxengine.front.ward import State, Ward

ARRAYS = {"w": np.ones(2)}
BY_ARRAYS, BY_PATH = Update(0, ARRAYS, "1"), Update(0, "/step", "2")
WEIGHTS, CACHE = (Wake(0, (tag,)) for tag in ("weights", "kv_cache"))
ALL = Wake(0, TAGS)


class Willing:
    """A channel to an engine that does what it is asked."""

    lives = True

    def __init__(self, ward: Ward) -> None:
        self._ward = ward

    def send(self, question: Question) -> None:
        if self.lives:
            self._ward.asked.pop(question.number).answer(Done(question.number))


def brought_up(*asked: Question) -> list[Any]:
    """What an engine's successor is asked, without numbers."""
    ward = Ward(0, Restarts(20), state=State.READY)
    ward.engine = Willing(ward)  # type: ignore[assignment]
    questions = Questions([ward], count(), lambda **_: None)
    for question in asked:
        questions.ask(question)
    found: list[Any] = []
    for again in to_bring_up(ward, count()):
        match again:
            case Update(_, source):
                found.append(source if isinstance(source, str) else "arrays")
            case Sleep(_, level):
                found.append(level)
            case Wake(_, tags):
                found.append(set(tags))
    return found


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ([BY_ARRAYS], ["arrays"]),
        ([BY_ARRAYS, BY_PATH], ["/step"]),
        ([Sleep(0, 1), WEIGHTS], [1, {"weights"}]),
        ([Sleep(0, 2), CACHE], [2, {"kv_cache"}]),
        ([Sleep(0, 2), ALL], []),
        ([BY_ARRAYS, Sleep(0, 1), ALL], ["arrays"]),
        ([BY_ARRAYS, Sleep(0, 2), ALL], []),
        ([BY_PATH, Sleep(0, 2), ALL], ["/step"]),
        ([Sleep(0, 2), BY_ARRAYS], ["arrays", 1, {"weights"}]),
        ([Sleep(0, 2), BY_ARRAYS, ALL], ["arrays"]),
        ([Sleep(0, 2), CACHE, BY_ARRAYS], ["arrays"]),
        ([Sleep(0, 2), BY_ARRAYS, Sleep(0, 1), ALL], ["arrays"]),
        ([Sleep(0, 2), BY_ARRAYS, Sleep(0, 2), ALL], []),
        ([Sleep(0, 1), WEIGHTS, Sleep(0, 0)], [1, {"weights"}]),
        ([ALL, Sleep(0, 0)], [0]),
    ],
)
def test_the_next_engine_is_brought_to_where_the_one_before_it_was(asked: list[Question], found: list[Any]) -> None:
    """Weights that came as arrays are there until they are dropped: what is read then are those of the directory."""
    assert brought_up(*asked) == found


@pytest.mark.parametrize(
    ("done", "undone"), [(PauseGeneration(0, "keep"), ResumeGeneration(0)), (Sleep(0, 1), ALL), (Sleep(0, 2), ALL)]
)
def test_what_an_engine_died_over_and_is_so_is_told_of_it(done: Question, undone: Question) -> None:
    """The next one will be awake and compute, and so it is said from the answer on."""
    ward = Ward(0, Restarts(20), state=State.READY)
    engine = Willing(ward)
    ward.engine = engine  # type: ignore[assignment]
    told: list[Any] = []
    questions = Questions([ward], count(), lambda **what: told.append(what["ward"].statistics))
    questions.ask(done)
    engine.lives = False
    questions.ask(undone)
    for asked in ward.end(State.WAITING):
        assert ward.statistics.paused or ward.statistics.asleep
        asked.answer(answer_of_the_dead(asked.question, "killed"))
    assert len(told) == 2
    assert (told[-1].paused, told[-1].asleep) == (False, False)


def test_what_else_an_engine_died_over_is_refused_by_its_name() -> None:
    refused = answer_of_the_dead(PauseGeneration(7, "keep"), "killed")
    assert isinstance(refused, Refused)
    assert str(refused.error) == "the engine died (killed) before it had done this (pause generation); ask again"
