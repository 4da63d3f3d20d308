"""The client of an event loop: coroutines hand it requests and wait for their outputs.

    event loop                                                 the other end of the channel
    submit / abort / reset        -- messages ------------->     EngineLoop
    Postprocessor                 <-- events (deque, wake-up) --   EngineCore
      OutputStream, listeners
      stop strings                -- Abort ---------------->

The two sides share nothing but what passes between them (`messages.py`): everything that touches an engine is done at the other
end, everything that touches text, a stream or a listener on the event loop; so neither needs a lock, and between two steps the
engine has no text to make.

The event loop takes all that has come since it last looked. Where it falls behind, one output of a request carries the tokens of
several steps, which is less work for each.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxengine.contract.channel import Channel
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import (
    Abort,
    Add,
    Close,
    EngineDead,
    Event,
    Pause,
    StepOutputs,
)
from jaxengine.contract.metrics import NOTHING_YET, EngineStatistics, StatsListener
from jaxengine.contract.request import Request
from jaxengine.contract.step_updates import parts_of
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import (
    EngineDeadError,
    JaxEngineError,
    OverloadedError,
    RequestError,
)
from jaxengine.front.admission import Admission, Gate, num_media_bytes
from jaxengine.front.mailbox import Mailbox
from jaxengine.front.operations import Operations
from jaxengine.front.output_stream import OutputStream
from jaxengine.front.postprocess import Postprocessor, Progress
from jaxengine.front.token_sinks import TokenSinks

logger = logging.getLogger(__name__)

UPDATES_AT_ONCE = 16
"""Updates of a request after which the time is looked at: the last one of a long text may take a millisecond."""

SLICE_S = 0.002
"""Seconds for which outputs are built before whatever else the event loop has to do gets its turn."""


@dataclass(slots=True, eq=False)
class _Open:
    """A request that somebody waits for, which shows `media_bytes`: `progress` from when the engine has accepted it, and updates
    that are not read yet.

    Anything came of it when it has `begun`; it is `unread` while something came that was not looked at: updates, or tokens that
    have gone where it keeps them. After its updates it ends with `error`, if there is one.
    """

    stream: OutputStream[Any]
    media_bytes: int = 0
    begun: bool = False
    unread: bool = False
    progress: Progress | None = None
    updates: list[SequenceUpdate] = field(default_factory=list)
    error: JaxEngineError | None = None


class AsyncClient(Operations):
    """Holds an engine by a channel. Its methods belong to the event loop that called `start`.

    Args:
        channel: the way to the engine, which nobody else may use until `close` has returned.
        postprocessor: builds the outputs, on the event loop.
        admission: limits for those who come in.
        listeners: of an engine by its number; they hear the statistics of its every step, on the event loop.

    Attributes:
        gate: lets requests in.
        num_pauses: how often the engine was told to pause requests because their outputs are not read.
        engines: the counts of each engine that was heard of, by its number, as of its last step.
    """

    def __init__(
        self,
        channel: Channel,
        postprocessor: Postprocessor,
        *,
        admission: Admission | None = None,
        listeners: Callable[[int], Sequence[StatsListener]] = lambda engine: (),
    ) -> None:
        super().__init__(channel)
        self.gate = Gate(admission or Admission())
        self.num_pauses = 0
        self.engines: dict[int, EngineStatistics] = {}
        self._postprocessor = postprocessor
        self._listeners = listeners
        self._mailbox: Mailbox[Event] | None = None
        self._open: dict[str, _Open] = {}
        self._unread: deque[_Open] = deque()
        self._sinks: dict[int, TokenSinks[_Open]] = {}

    @property
    def facts(self) -> EngineFacts:
        """What is true of the engine for as long as it runs."""
        return self._channel.facts

    @property
    def statistics(self) -> EngineStatistics:
        """The counts of all engines; their steps advance as long as one is alive and has work."""
        return EngineStatistics.total(list(self.engines.values())) if self.engines else NOTHING_YET

    @property
    def num_open(self) -> int:
        """Requests that somebody waits for."""
        return len(self._open)

    def start(self) -> None:
        """Open the channel, on behalf of the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._mailbox = Mailbox(self._loop, self._process_events)
        self._channel.open(self._mailbox.put)

    def check_health(self) -> None:
        """Return when the engine can be trusted with a request.

        Raises:
            EngineDeadError: it has ended.
            OverloadedError: it is being started again, or is about to stop.
        """
        if self._error is not None:
            raise self._error
        if not self._channel.is_alive:
            raise EngineDeadError("the engine has not been started, or its thread has ended")
        if self.gate.draining:
            raise OverloadedError("the server is shutting down")
        if (trouble := self._channel.condition.trouble) is not None:
            raise OverloadedError(trouble)

    async def submit(self, requests: Sequence[Request], *, timeout_s: float | None = None) -> OutputStream[Any]:
        """Hand in requests, all or none; returns when the engine has accepted them.

        They may take `timeout_s`, or less where less is allowed to all.

        Raises:
            RequestError: one of them can never run, or its id is in use.
            OverloadedError: too much waits already, or the engine is about to stop.
            DeadlineError: the engine did not get to it in the time that a request has.
            EngineDeadError: the engine has stopped.
        """
        admission = self.gate.admission
        limit = admission.deadline(timeout_s)
        if self._error is not None:
            raise self._error
        self.gate.check(requests, self.statistics.scheduler, self._num_waiting_of, self._num_media_bytes)
        self._check_ids(requests)
        stream: OutputStream[Any] = OutputStream(
            self.abort,
            [request.request_id for request in requests],
            pause=self._pause,
            max_unread=admission.max_unread * sum(request.sampling.n for request in requests),
        )
        for request in requests:
            self._open[request.request_id] = _Open(stream, num_media_bytes([request]))
        if limit is not None:
            stream.limit_time(*limit)
        try:
            with self.gate.entering(requests):
                async with asyncio.timeout(
                    None if limit is None else limit[0]
                ):  # a step that hangs keeps the answer away
                    added = Add(next(self._numbers), tuple(requests))
                    await self._ask(added, done=lambda: self._follow(requests, stream))
        except TimeoutError:
            stream.close()
            assert limit is not None
            raise limit[1] from None
        except BaseException:
            stream.close()
            raise
        return stream

    def abort(self, request_ids: Sequence[str]) -> None:
        """End exactly these requests before the next step; ids that have ended are passed over."""
        if self._error is None:
            self._channel.send(Abort(tuple(request_ids)))
        for request_id in request_ids:  # only now: who sees `num_open` fall may count on the abort being on its way
            self._open.pop(request_id, None)

    def _num_media_bytes(self) -> int:
        return sum(found.media_bytes for found in self._open.values())

    def _pause(self, request_ids: Sequence[str], paused: bool) -> None:
        """Have no more made for these requests, or let them go on."""
        if self._error is None and request_ids:
            self.num_pauses += paused
            self._channel.send(Pause(tuple(request_ids), paused))

    def drain(self) -> None:
        """Refuse new requests from now on; what was accepted goes on."""
        self.gate.drain()

    def fail_all(self, error: Exception) -> None:
        """End every open request with `error`."""
        for stream in dict.fromkeys(found.stream for found in self._open.values()):
            stream.fail(error)

    async def close(self, *, patience_s: float = 10.0) -> None:
        """End the engine after the step in progress and free the device. Open requests fail. Closing twice is fine.

        A step that does not end within `patience_s` is left behind: it must not keep the process alive.
        """
        self.gate.drain()
        self._channel.send(Close())
        until = time.monotonic() + patience_s
        while self._channel.is_alive and time.monotonic() < until:
            await asyncio.sleep(0.005)
        self._leave()

    def join(self, *, patience_s: float = 10.0) -> None:
        """The same as `close` for a caller that is no coroutine: the event loop stands still meanwhile."""
        self.gate.drain()
        self._channel.send(Close())
        self._channel.join(patience_s)
        self._leave()

    def _leave(self) -> None:
        """The engine has ended, or had its time to."""
        if self._channel.is_alive:
            logger.error("the engine's step does not end and is left behind")
        self._die(EngineDeadError("the engine was closed"))

    def _check_ids(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.request_id in self._open:
                raise RequestError(
                    f"request id {request.request_id!r} is in use by a request that has not ended; choose another",
                    param="request_id",
                )

    def _num_waiting_of(self, share: str | None) -> int:
        """Requests of a share of which nothing has come yet."""
        return sum(
            not each.begun and each.progress is not None and each.progress.request.share == share
            for each in self._open.values()
        )

    def _follow(self, requests: Sequence[Request], stream: OutputStream[Any]) -> None:
        """Build outputs of these requests from now on, of those for which `stream` still waits."""
        for request in requests:
            found = self._open.get(request.request_id)
            if found is not None and found.stream is stream:
                found.progress = self._postprocessor.begin(request)

    def _process_events(self) -> None:
        """Take in all that has come, and build outputs for as long as one slice allows."""
        assert self._mailbox is not None
        for event in self._mailbox.take_all():
            if isinstance(event, EngineDead):
                self._build(until=math.inf)
                self._die(event.error)
            elif isinstance(event, StepOutputs):
                self._take_outputs(event)
        self._build(until=time.monotonic() + SLICE_S)

    def _take_outputs(self, outputs: StepOutputs) -> None:
        self.engines[outputs.engine] = outputs.statistics
        for reply in outputs.replies:
            self._answer(reply)
        for part in parts_of(outputs.updates):
            told, updates = self._sinks_of(outputs.engine).take(part)
            for found in told:
                self._let_read(found)
            for update in updates:
                if (request := self._find(update.request_id)) is not None:
                    request[0].updates.append(update)
                    self._let_read(request[0])
        for failed in outputs.failed:
            if (request := self._find(failed.request_id)) is not None:
                request[0].error = failed.error
                self._let_read(request[0])
        self._tell_listeners(outputs)

    def _sinks_of(self, engine: int) -> TokenSinks[_Open]:
        """Where tokens of an engine go."""
        if engine not in self._sinks:
            self._sinks[engine] = TokenSinks(self._find_taken)
        return self._sinks[engine]

    def _find(self, request_id: str) -> tuple[_Open, Progress] | None:
        """A request; None of one that has ended here, perhaps one before with the same id."""
        found = self._open.get(request_id)
        return None if found is None or found.progress is None else (found, found.progress)

    def _find_taken(self, request_id: str) -> tuple[_Open, Progress] | None:
        """A request all of whose updates were taken."""
        request = self._find(request_id)
        return None if request is None or request[0].updates else request

    def _let_read(self, found: _Open) -> None:
        if not found.unread:
            found.unread = True
            self._unread.append(found)

    def _build(self, *, until: float) -> None:
        """Build outputs until the time `until`; what is left then waits for its turn behind the event loop's other work."""
        while self._unread:
            found = self._unread.popleft()
            found.unread = False
            updates, found.updates = found.updates[:UPDATES_AT_ONCE], found.updates[UPDATES_AT_ONCE:]
            progress = found.progress
            assert progress is not None
            found.begun = True
            request_id = progress.request.request_id
            if self._open.get(request_id) is not found:
                continue  # it was given up meanwhile, or has ended with those before
            if found.updates:
                self._let_read(found)  # others come first
            output, ended = None, None
            if updates:
                output, ended = progress.process(updates)
            elif progress.tells_each:
                output, ended = progress.tell()
            if ended is not None and self._error is None:
                self._channel.send(ended)
            if progress.finished:
                del self._open[request_id]
            if output is not None:
                found.stream.put(output)
            if found.error is not None and not (found.updates or progress.finished):
                found.stream.fail(found.error)
            if time.monotonic() > until:
                assert self._mailbox is not None
                self._mailbox.look_again()
                return

    def _tell_listeners(self, outputs: StepOutputs) -> None:
        for listener in self._listeners(outputs.engine):
            for step in outputs.finished_steps:
                listener.on_step(step)
            for finished in outputs.finished:
                listener.on_finished(finished.sequence, finished.request)
            for lost in outputs.lost:
                listener.on_lost(lost.finish_reason, lost.num_sequences)

    def _die(self, error: EngineDeadError) -> None:
        self._error = self._error or error
        self.fail_all(self._error)
        self._fail_questions(self._error)
