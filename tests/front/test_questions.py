"""What an engine was asked for is asked of the next one in its place, so that it is where the one before it was."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

from jaxengine.contract.messages import TAGS, Done, Question, Sleep, Update, Wake
from jaxengine.front.questions import Questions, to_bring_up
from jaxengine.front.restarts import Restarts, Supervision
from jaxengine.front.ward import State, Ward

ARRAYS = {"w": np.ones(2)}
BY_ARRAYS, BY_PATH = Update(0, ARRAYS, "1"), Update(0, "/step", "2")
WEIGHTS, CACHE = (Wake(0, (tag,)) for tag in ("weights", "kv_cache"))
ALL = Wake(0, TAGS)


class Willing:
    """A channel to an engine that does what it is asked."""

    def __init__(self, ward: Ward) -> None:
        self._ward = ward

    def send(self, question: Question) -> None:
        self._ward.asked.pop(question.number).answer(Done(question.number))


def brought_up(*asked: Question) -> list[Any]:
    """What an engine's successor is asked, without numbers."""
    ward = Ward(0, Restarts(Supervision()), state=State.READY)
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
