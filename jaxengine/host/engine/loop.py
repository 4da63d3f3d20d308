"""The engine's side of a channel: it takes messages between two steps and tells what came of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from queue import Empty
from typing import Protocol

from jaxengine.contract.messages import (
    Began,
    Close,
    EngineDead,
    Event,
    Finished,
    Lost,
    Message,
    Reply,
    StepOutputs,
)
from jaxengine.contract.metrics import EngineStatistics, FinishedRequest, FinishedSequence, StepStats
from jaxengine.contract.step_updates import StepUpdates
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import EngineDeadError
from jaxengine.host.engine.deferred import Deferred
from jaxengine.host.engine.host import EngineHost

logger = logging.getLogger(__name__)

DEFERRED_POLL_S = 0.002
"""How often an idle engine looks whether what was deferred is ready."""

REPORT_S = 1.0
"""How often an idle engine tells how it stands, where that has changed or somebody waits for a reply."""


class Messages(Protocol):
    """Where messages come from: a `queue.SimpleQueue`, or a queue between processes."""

    def get(self, block: bool, timeout: float | None) -> Message:
        """The next message; a caller that blocks waits at most so many seconds.

        Raises:
            queue.Empty: there is none.
        """
        ...


class EngineLoop:
    """Steps an engine for as long as there is work, and waits for messages where there is none.

    Nothing but messages comes in and nothing but events goes out, so it runs as well in a thread as in a process of its own.

    Args:
        host: the engine; nobody else may touch it from now on.
        messages: what to do between two steps.
        emit: is given every event, in order, by whoever calls `run` or `turn`.
    """

    def __init__(self, host: EngineHost, messages: Messages, emit: Callable[[Event], None]) -> None:
        self._host = host
        self._messages = messages
        self._emit = emit
        self._deferred = Deferred(host)
        self._finished_steps: list[StepStats] = []
        self._finished: list[Finished] = []
        self._lost: list[Lost] = []
        self._told: EngineStatistics | None = None
        self._told_at = 0.0
        host.core.recorder.listen(self)
        host.core.announce = lambda request_ids: emit(Began(request_ids))

    def run(self) -> None:
        """Work until a `Close`, or until a step fails. The last event is `EngineDead`, and then the core is closed."""
        while self.turn():
            pass

    def turn(self, *, wait: bool = True) -> bool:
        """Take in what was asked for, run a step if there is work, and tell what came of both; False when that was the last.

        Where there is nothing to do it waits for something, or with `wait` off returns at once, for a caller that knows when.
        """
        dead = EngineDead(EngineDeadError("the engine was closed"))
        try:
            if self._take_messages(wait=wait):
                if self._host.has_work:
                    self._tell(updates=self._host.step())
                return True
        except BaseException:
            # Clients hear that it happened, not what: the reason may hold addresses, paths, parts of another's request.
            error = EngineDeadError("the engine has stopped: a step failed, and the server's log says why")
            dead = EngineDead(error, cause="step")
            logger.exception("the engine has stopped")
        self._deferred.join()
        self._host.core.close()
        self._tell()
        self._emit(dead)
        return False

    @property
    def any_ready(self) -> bool:
        """Whether the next turn can go on with what was put off."""
        return self._deferred.any_ready

    def on_step(self, stats: StepStats) -> None:
        """The core has finished a step."""
        self._finished_steps.append(stats)

    def on_finished(self, sequence: FinishedSequence, request: FinishedRequest | None) -> None:
        """A sequence of the core ended by itself."""
        self._finished.append(Finished(sequence, request))

    def on_lost(self, finish_reason: str, num_sequences: int) -> None:
        """Sequences of the core ended before their time."""
        self._lost.append(Lost(finish_reason, num_sequences))

    def _take_messages(self, *, wait: bool) -> bool:
        """Do what was asked for, if it may waiting for something to do where there is nothing; False when it is time to end."""
        replies: list[Reply] = self._deferred.replies()
        updates = self._deferred.take_updates()
        any_came = bool(replies or updates)
        block = wait and not (any_came or self._host.has_work)
        try:
            while True:
                message = self._next(block=block)
                if isinstance(message, Close):
                    return False
                block, any_came = False, True
                if not self._deferred.defer(message) and (reply := self._host.take(message)) is not None:
                    replies.append(reply)
        except Empty:
            return True
        finally:
            if any_came:
                self._tell(replies=replies, updates=updates)

    def _next(self, *, block: bool) -> Message:
        """The next message. Raises `Empty` where there is none, or no more to wait for."""
        if not block:
            return self._messages.get(False, None)
        while True:
            try:
                return self._messages.get(True, DEFERRED_POLL_S if self._deferred else REPORT_S)
            except Empty:
                changed = bool(self._deferred) or self._host.statistics != self._told
                if changed and time.monotonic() - self._told_at >= REPORT_S:
                    self._tell()
                if self._deferred.any_ready:
                    raise

    def _tell(self, *, replies: Sequence[Reply] = (), updates: Sequence[SequenceUpdate] = ()) -> None:
        self._told, self._told_at = self._host.statistics, time.monotonic()
        outputs = StepOutputs(
            statistics=self._told,
            busy=self._host.has_work,
            replies=tuple(replies),
            updates=StepUpdates.joined([updates]),
            finished_steps=tuple(self._finished_steps),
            finished=tuple(self._finished),
            lost=tuple(self._lost),
        )
        self._finished_steps.clear()
        self._finished.clear()
        self._lost.clear()
        self._emit(outputs)
