"""Engines that are started again because somebody wants it: emptied first, while others serve."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxengine.contract.messages import Close, Done, Refused, Restart
from jaxengine.errors import EngineDeadError, JaxEngineError, OverloadedError, RequestError, UnsupportedError
from jaxengine.front.dispatcher import Dispatcher, Tell
from jaxengine.front.ward import State, Ward

logger = logging.getLogger("jaxengine")


LAST_WORK_S = 15.0
"""How long an engine may take to close before it is killed."""


@dataclass(slots=True)
class _Renewal:
    """One that is under way: `until` then the engine has for its requests, and once it is `closing` for its last work."""

    question: Restart
    until: float
    closing: bool = False


class Renewals:
    """What was asked for, by the engine.

    An engine that is drained gets no requests. Those that it has may end; what has not in time goes on elsewhere. Then it is
    closed, and another starts in its place, which is not counted as a death.

    Args:
        wards: the engines.
        dispatcher: knows their requests.
        tell: is given the answers.
        clock: seconds.
        possible: whether engines can be started again at all.
    """

    def __init__(
        self,
        wards: Sequence[Ward],
        dispatcher: Dispatcher,
        tell: Tell,
        *,
        clock: Callable[[], float],
        possible: bool,
    ) -> None:
        self._wards = wards
        self._dispatcher = dispatcher
        self._tell = tell
        self._clock = clock
        self._possible = possible
        self._renewals: dict[int, _Renewal] = {}

    def begin(self, question: Restart) -> None:
        """Drain an engine. The answer follows when the next one in its place is ready."""
        if (problem := self._problem(question)) is not None:
            self._tell(replies=[Refused(question.number, problem)])
            return
        ward = self._wards[question.engine]
        self._renewals[ward.index] = _Renewal(question, self._clock() + question.patience_s)
        ward.state = State.DRAINING
        logger.info("engine %d is drained: %d requests have %g s", ward.index, len(ward.entries), question.patience_s)
        self._go_on(ward)

    def look(self) -> None:
        """Time has passed, or requests have ended."""
        for index in list(self._renewals):
            self._go_on(self._wards[index])

    def is_closing(self, ward: Ward) -> bool:
        """Whether the engine ends because it was told to."""
        renewal = self._renewals.get(ward.index)
        return renewal is not None and renewal.closing and ward.state is State.DRAINING

    def started(self, ward: Ward) -> None:
        """Another engine is ready in this place."""
        if (renewal := self._renewals.pop(ward.index, None)) is not None:
            self._tell(replies=[Done(renewal.question.number)])

    def given_up(self, ward: Ward) -> None:
        """No other engine will be."""
        if (renewal := self._renewals.pop(ward.index, None)) is not None:
            error = EngineDeadError("the engine has died and is not started again")
            self._tell(replies=[Refused(renewal.question.number, error)])

    def _problem(self, question: Restart) -> JaxEngineError | None:
        if not self._possible:
            return UnsupportedError("an engine on a thread of the server cannot be restarted; restart the server")
        if not 0 <= question.engine < len(self._wards):
            return RequestError(f"there is no engine {question.engine}; there are {len(self._wards)}", param="engine")
        if not self._wards[question.engine].is_ready:
            state = self._wards[question.engine].state.value
            return OverloadedError(f"engine {question.engine} cannot be restarted now: it is {state}")
        return None

    def _go_on(self, ward: Ward) -> None:
        renewal = self._renewals[ward.index]
        if ward.state is not State.DRAINING or ward.engine is None:
            return
        now = self._clock()
        if renewal.closing:
            if now >= renewal.until:
                ward.engine.kill()
        elif now >= renewal.until or not ward.entries:
            renewal.closing, renewal.until = True, now + LAST_WORK_S
            self._dispatcher.empty(ward)
            ward.engine.send(Close())
