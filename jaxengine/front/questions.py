"""What the client asks of engines beside requests: each is asked, and what it has done its successor has to do as well."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from jaxengine.contract.messages import (
    KV_CACHE,
    SCHEDULING,
    WEIGHTS,
    Cause,
    Done,
    PauseGeneration,
    Question,
    Refused,
    Reply,
    Reset,
    ResumeGeneration,
    Sleep,
    Update,
    Wake,
)
from jaxengine.errors import CheckpointError, EngineDeadError, JaxEngineError
from jaxengine.front.dispatcher import Tell
from jaxengine.front.ward import Asked, State, Ward

DROPPED = 2
"""The level of a sleep without weights."""


@dataclass(slots=True, eq=False)
class _Shared:
    """A question to every engine, and the wards that have not answered."""

    question: Question
    waiting: set[int]
    success: bool = True
    digest: str = ""
    error: JaxEngineError | None = None


class Questions:
    """Asks every engine, and gives the client one answer: the first refusal, or that it is done.

    Args:
        wards: the engines.
        numbers: for messages to them.
        tell: is given the answer.
    """

    def __init__(self, wards: Sequence[Ward], numbers: count[int], tell: Tell) -> None:
        self._wards = wards
        self._numbers = numbers
        self._tell = tell

    def ask(self, question: Question) -> None:
        """Ask the engines that are ready now, those that start when they are."""
        wards = [ward for ward in self._wards if ward.state is not State.GONE]
        shared = _Shared(question, {ward.index for ward in wards})
        for ward in wards:
            asked = Asked(replace(question, number=next(self._numbers)), self._answer_of(ward, shared))
            if ward.is_ready:
                ward.ask(asked.question, asked.answer)
            else:
                ward.unsent.append(asked)

    def _answer_of(self, ward: Ward, shared: _Shared) -> Callable[[Reply], None]:
        """What takes a ward's answer. When the last has answered, the client has its own."""

        def answer(reply: Reply) -> None:
            if isinstance(reply, Refused):
                shared.error = shared.error or reply.error
            else:
                shared.success = shared.success and reply.success
                shared.digest = shared.digest or reply.digest
                if reply.digest != shared.digest:
                    shared.error = shared.error or CheckpointError(
                        "the adapter changed while the replicas read it; load it again"
                    )
                _remember(ward, shared.question)
                if ward.engine is None:
                    ward.statistics = ward.standing(ward.statistics)
            shared.waiting.discard(ward.index)
            if not shared.waiting:
                number = shared.question.number
                done = (
                    Done(number, shared.success, shared.digest)
                    if shared.error is None
                    else Refused(number, shared.error)
                )
                self._tell(replies=[done], ward=ward)

        return answer


def _remember(ward: Ward, question: Question) -> None:
    match question:
        case Sleep(_, level):
            ward.sleep = max(level, ward.sleep or 0)
            ward.woken = frozenset() if level else ward.woken - {SCHEDULING}
        case Wake(_, tags):
            if ward.sleep == DROPPED and WEIGHTS in tags:  # they were read again
                ward.updates = [each for each in ward.updates if isinstance(each.source, str)]
            _wake(ward, frozenset(tags))
        case PauseGeneration():
            ward.paused = True
        case ResumeGeneration():
            ward.paused = False
        case Update(_, source):
            if not isinstance(source, str):  # the caller may write to them
                question = replace(question, source={name: np.array(array) for name, array in source.items()})
            ward.updates = [*(each for each in ward.updates if not _replaces(question, each)), question]
            _wake(ward, frozenset({WEIGHTS}))


def _wake(ward: Ward, tags: frozenset[str]) -> None:
    if ward.sleep is None:
        return
    if ward.sleep == DROPPED and WEIGHTS in tags:
        ward.sleep = 1  # an engine in its place is not to drop them
    ward.woken |= tags
    needed = {SCHEDULING} if ward.sleep == 0 else {WEIGHTS, KV_CACHE}
    if needed <= ward.woken:
        ward.sleep, ward.woken = None, frozenset()


def _replaces(later: Update, earlier: Update) -> bool:
    """Whether nothing of the weights of an update is left after a later one."""
    if isinstance(later.source, str) or isinstance(earlier.source, str):
        return isinstance(later.source, str)
    return earlier.source.keys() <= later.source.keys()


def to_bring_up(ward: Ward, numbers: count[int]) -> list[Question]:
    """What an engine is to be asked before it is where the one before it was."""
    questions: list[Question] = [replace(update, number=next(numbers)) for update in ward.updates]
    if ward.sleep is not None:
        questions.append(Sleep(next(numbers), ward.sleep))
    if ward.woken:
        questions.append(Wake(next(numbers), tuple(sorted(ward.woken))))
    if ward.paused:
        questions.append(PauseGeneration(next(numbers), "keep", clear_cache=False))
    return questions


def answer_of_the_dead(question: Question, cause: Cause) -> Reply:
    """What the client is told about a question that an engine died over.

    The next engine has an empty cache, is awake and computes, which is what some ask for. What else was asked for is not asked
    again: it may be what killed it.
    """
    if isinstance(question, Reset | Wake | ResumeGeneration):
        return Done(question.number)
    what = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(question).__name__).lower()
    return Refused(
        question.number, EngineDeadError(f"the engine died ({cause}) before it had done this ({what}); ask again")
    )
