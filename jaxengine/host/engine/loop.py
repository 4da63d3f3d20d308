"""The engine's side: it owns the core, takes messages between two steps and tells what came of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from queue import Empty
from typing import Protocol

from jaxengine.contract.messages import (
    Abort,
    Accepted,
    Add,
    Close,
    EngineDead,
    Event,
    Finished,
    Lost,
    Message,
    Refused,
    Reply,
    Reset,
    StepOutputs,
    WasReset,
)
from jaxengine.contract.metrics import FinishedRequest, FinishedSequence, StepStats
from jaxengine.contract.request import Request
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import EngineDeadError, JaxEngineError
from jaxengine.host.engine.core import EngineCore

logger = logging.getLogger(__name__)


class Messages(Protocol):
    """Where messages come from: a `queue.SimpleQueue`, or a queue between processes."""

    def get(self, block: bool) -> Message:
        """The next message.

        Raises:
            queue.Empty: there is none, and the caller does not wait.
        """
        ...


class EngineLoop:
    """Steps a core for as long as there is work, and waits for messages where there is none.

    Nothing but messages comes in and nothing but events goes out, so it runs as well in a thread as in a process of its own.

    Args:
        core: nobody else may touch it from now on.
        messages: what to do between two steps.
        emit: is given every event, in order, by whoever calls `run`.
    """

    def __init__(self, core: EngineCore, messages: Messages, emit: Callable[[Event], None]) -> None:
        self._core = core
        self._messages = messages
        self._emit = emit
        self._num_steps = 0
        self._finished_steps: list[StepStats] = []
        self._finished: list[Finished] = []
        self._lost: list[Lost] = []
        core.recorder.listen(self)

    def run(self) -> None:
        """Work until a `Close`, or until a step fails. The last event is `EngineDead`, and then the core is closed."""
        error = EngineDeadError("the engine was closed")
        try:
            while self._take_messages():
                if self._core.has_unfinished:
                    updates = self._core.step()
                    self._num_steps += 1
                    self._emit_outputs(updates=updates)
        except BaseException:
            # Clients hear that it happened, not what: the reason may hold addresses, paths, parts of another's request.
            error = EngineDeadError("the engine has stopped: a step failed, and the server's log says why")
            logger.exception("the engine has stopped")
        finally:
            self._core.close()
            self._emit_outputs()
            self._emit(EngineDead(error))

    def on_step(self, stats: StepStats) -> None:
        """The core has finished a step."""
        self._finished_steps.append(stats)

    def on_finished(self, sequence: FinishedSequence, request: FinishedRequest | None) -> None:
        """A sequence of the core ended by itself."""
        self._finished.append(Finished(sequence, request))

    def on_lost(self, finish_reason: str, num_sequences: int) -> None:
        """Sequences of the core ended before their time."""
        self._lost.append(Lost(finish_reason, num_sequences))

    def _take_messages(self) -> bool:
        """Do what was asked for, waiting for something to do where there is nothing; False when it is time to end."""
        replies: list[Reply] = []
        block, any_came = not self._core.has_unfinished, False
        try:
            while True:
                message = self._messages.get(block)
                if isinstance(message, Close):
                    return False
                block, any_came = False, True
                reply = self._take(message)
                if reply is not None:
                    replies.append(reply)
        except Empty:
            return True
        finally:
            if any_came:
                self._emit_outputs(replies=replies)

    def _take(self, message: Add | Abort | Reset) -> Reply | None:
        match message:
            case Add(number, requests):
                return self._add(number, requests)
            case Reset(number):
                return WasReset(number, self._core.reset_prefix_cache())
            case Abort():
                self._core.end(message)
                return None

    def _add(self, number: int, requests: Sequence[Request]) -> Reply:
        added = []
        try:
            for request in requests:
                self._core.add(request)
                added.append(request.request_id)
        except Exception as error:
            for request_id in added:
                self._core.abort(request_id)
            if isinstance(error, JaxEngineError):
                return Refused(number, error.with_traceback(None))  # a value: no frames of this side
            logger.exception("the engine could not take in a request")
            return Refused(number, JaxEngineError("the engine could not take in a request, and the log says why"))
        return Accepted(number)

    def _emit_outputs(self, *, replies: Sequence[Reply] = (), updates: Sequence[SequenceUpdate] = ()) -> None:
        news = StepOutputs(
            num_steps=self._num_steps,
            busy=self._core.has_unfinished,
            stats=self._core.scheduler.stats,
            replies=tuple(replies),
            updates=tuple(updates),
            finished_steps=tuple(self._finished_steps),
            finished=tuple(self._finished),
            lost=tuple(self._lost),
        )
        self._finished_steps.clear()
        self._finished.clear()
        self._lost.clear()
        self._emit(news)
