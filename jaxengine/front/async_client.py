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
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from jaxengine.contract.channel import Channel
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import (
    Abort,
    Add,
    Close,
    Done,
    EngineDead,
    Event,
    Profile,
    Question,
    Refused,
    Reply,
    Reset,
    Sleep,
    StepOutputs,
    Update,
    Wake,
)
from jaxengine.contract.metrics import NOTHING_YET, EngineStatistics, StatsListener
from jaxengine.contract.request import Request
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import EngineDeadError, JaxEngineError, OverloadedError
from jaxengine.front.output_stream import OutputStream, deadline_error
from jaxengine.front.postprocess import Postprocessor, Progress

logger = logging.getLogger(__name__)

Clock = Callable[[], float]

SLICE_S = 0.002
"""Seconds for which outputs are built before whatever else the event loop has to do gets its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Who may come in. Zero is no limit.

    `max_requests` and `max_tokens` bound what waits for its first step, `timeout_s` a request's whole life: queue, prompt and
    output. An engine that has work and is not heard of for `watchdog_s` counts as hung.
    """

    max_requests: int = 0
    max_tokens: int = 0
    timeout_s: float = 0.0
    watchdog_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """Somebody waits for a reply. `done` is called at its place among the events, before what follows a `Done`."""

    reply: asyncio.Future[Reply]
    done: Callable[[], None]


@dataclass(slots=True, eq=False)
class _Open:
    """A request that somebody waits for: `progress` from when the engine has accepted it, and updates that are not read yet."""

    stream: OutputStream
    progress: Progress | None = None
    updates: list[SequenceUpdate] = field(default_factory=list)


class AsyncClient:
    """Holds an engine by a channel. Its methods belong to the event loop that called `start`.

    Args:
        channel: the way to the engine, which nobody else may use until `close` has returned.
        postprocessor: builds the outputs, on the event loop.
        admission: limits for those who come in.
        listeners: hear the statistics of every step, on the event loop.
        clock: seconds, for the watchdog.

    Attributes:
        rejections: how many submissions were refused, by reason (`requests`, `tokens`, `draining`).
        statistics: the engine's counts as of the last step; its steps advance as long as it is alive and has work.
    """

    def __init__(
        self,
        channel: Channel,
        postprocessor: Postprocessor,
        *,
        admission: Admission | None = None,
        listeners: Sequence[StatsListener] = (),
        clock: Clock = time.monotonic,
    ) -> None:
        self.admission = admission or Admission()
        self.rejections = {"requests": 0, "tokens": 0, "draining": 0}
        self.statistics: EngineStatistics = NOTHING_YET
        self._channel = channel
        self._postprocessor = postprocessor
        self._listeners = listeners
        self._clock = clock
        self._numbers = itertools.count()
        self._questions: dict[int, _Asked] = {}
        self._events: deque[Event] = deque()
        self._woken = False
        self._open: dict[str, _Open] = {}
        self._unread: deque[_Open] = deque()
        self._pending = 0
        self._pending_tokens = 0
        self._silent_since: float | None = None
        self._error: EngineDeadError | None = None
        self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def facts(self) -> EngineFacts:
        """What is true of the engine for as long as it runs."""
        return self._channel.facts

    @property
    def num_open(self) -> int:
        """Requests that somebody waits for."""
        return len(self._open)

    def start(self) -> None:
        """Open the channel, on behalf of the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._channel.open(self._on_event)

    def check_health(self) -> None:
        """Return when the engine can be trusted with a request.

        Raises:
            EngineDeadError: it has ended, or the step in progress takes longer than the watchdog allows.
            OverloadedError: it is about to stop.
        """
        if self._error is not None:
            raise self._error
        if not self._channel.is_alive:
            raise EngineDeadError("the engine has not been started, or its thread has ended")
        since, limit = self._silent_since, self.admission.watchdog_s
        if limit and since is not None and (seconds := self._clock() - since) > limit:
            raise EngineDeadError(f"a step of the engine has been running for {seconds:.0f} s, more than {limit:.0f} s")
        if self._draining:
            raise OverloadedError("the server is shutting down")

    async def submit(self, requests: Sequence[Request]) -> OutputStream:
        """Hand in requests, all or none; returns when the engine has accepted them.

        Raises:
            RequestError: one of them can never run.
            OverloadedError: too much waits already, or the engine is about to stop.
            DeadlineError: the engine did not get to it in the time that a request has.
            EngineDeadError: the engine has stopped.
        """
        tokens = sum(len(request.prompt_token_ids) for request in requests)
        self._admit(len(requests), tokens)
        stream = OutputStream(self.abort, [request.request_id for request in requests])
        for request in requests:
            self._open[request.request_id] = _Open(stream)
        self._pending += len(requests)
        self._pending_tokens += tokens
        stream.limit_time(self.admission.timeout_s)
        try:
            async with asyncio.timeout(self.admission.timeout_s or None):  # a step that hangs keeps the answer away
                added = Add(next(self._numbers), tuple(requests))
                await self._ask(added, done=lambda: self._follow(requests, stream))
        except TimeoutError:
            stream.close()
            raise deadline_error(self.admission.timeout_s) from None
        except BaseException:
            stream.close()
            raise
        finally:
            self._pending -= len(requests)
            self._pending_tokens -= tokens
        return stream

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False when requests still hold some of them.

        Raises:
            EngineDeadError: the engine has stopped.
        """
        return await self._ask(Reset(next(self._numbers)))

    async def profile(self, *, begin: bool) -> None:
        """Begin a trace of device and host, or end it and write it.

        Raises:
            RequestError: it was not asked for at the start, one is running already, or none is.
            EngineDeadError: the engine has stopped.
        """
        await self._ask(Profile(next(self._numbers), begin))

    async def sleep(self) -> None:
        """Give the device's memory back until `wake`. The weights are kept on the host, the cache is not kept.

        Raises:
            RequestError: a request has not ended.
            EngineDeadError: the engine has stopped.
        """
        await self._ask(Sleep(next(self._numbers)))

    async def wake(self) -> None:
        """Take the device's memory again. Nothing compiles.

        Raises:
            EngineDeadError: the engine has stopped.
        """
        await self._ask(Wake(next(self._numbers)))

    async def update(self, path: str) -> None:
        """Use the weights of another checkpoint of the same model from now on. Cached prefixes are forgotten.

        Raises:
            RequestError: a request has not ended.
            CheckpointError: there is no such checkpoint, or it is of another model.
            OverloadedError: the engine sleeps.
            EngineDeadError: the engine has stopped.
        """
        await self._ask(Update(next(self._numbers), path))

    def abort(self, request_ids: Sequence[str]) -> None:
        """End exactly these requests before the next step; ids that have ended are passed over."""
        if self._error is None:
            self._channel.send(Abort(tuple(request_ids)))
        for request_id in request_ids:  # only now: who sees `num_open` fall may count on the abort being on its way
            self._open.pop(request_id, None)

    def drain(self) -> None:
        """Refuse new requests from now on; what was accepted goes on."""
        self._draining = True

    def fail_all(self, error: Exception) -> None:
        """End every open request with `error`."""
        for stream in {found.stream for found in self._open.values()}:
            stream.fail(error)

    async def close(self, *, patience_s: float = 10.0) -> None:
        """End the engine after the step in progress and free the device. Open requests fail. Closing twice is fine.

        A step that does not end within `patience_s` is left behind: it must not keep the process alive.
        """
        self._draining = True
        self._channel.send(Close())
        until = time.monotonic() + patience_s
        while self._channel.is_alive and time.monotonic() < until:
            await asyncio.sleep(0.005)
        self._leave()

    def join(self, *, patience_s: float = 10.0) -> None:
        """The same as `close` for a caller that is no coroutine: the event loop stands still meanwhile."""
        self._draining = True
        self._channel.send(Close())
        self._channel.join(patience_s)
        self._leave()

    def _leave(self) -> None:
        """The engine has ended, or had its time to."""
        if self._channel.is_alive:
            logger.error("the engine's step does not end and is left behind")
        self._die(EngineDeadError("the engine was closed"))

    def _admit(self, requests: int, tokens: int) -> None:
        if self._error is not None:
            raise self._error
        if self._draining:
            self._refuse("draining", "the server is shutting down and takes no new requests")
        waiting, limit = self.statistics.scheduler.num_waiting + self._pending, self.admission.max_requests
        if limit and waiting + requests > limit:
            self._refuse("requests", f"{waiting} requests are queued and at most {limit} may be; try again later")
        waiting, limit = self.statistics.scheduler.num_waiting_tokens + self._pending_tokens, self.admission.max_tokens
        if limit and waiting and waiting + tokens > limit:
            self._refuse("tokens", f"{waiting} prompt tokens are queued and at most {limit} may be; try again later")

    def _refuse(self, reason: str, message: str) -> None:
        self.rejections[reason] += 1
        raise OverloadedError(message)

    async def _ask(self, question: Question, *, done: Callable[[], None] = lambda: None) -> bool:
        """Whether what was asked for could be done.

        Raises:
            JaxEngineError: the engine refuses it.
            EngineDeadError: the engine has stopped.
        """
        if self._error is not None:
            raise self._error
        assert self._loop is not None, "start() comes first"
        answered: asyncio.Future[Reply] = self._loop.create_future()
        self._questions[question.number] = _Asked(answered, done)
        if self._silent_since is None:
            self._silent_since = self._clock()
        self._channel.send(question)
        try:
            reply = await answered
        finally:
            self._questions.pop(question.number, None)
        if isinstance(reply, Refused):
            raise reply.error
        return reply.success

    def _follow(self, requests: Sequence[Request], stream: OutputStream) -> None:
        """Build outputs of these requests from now on, of those for which `stream` still waits."""
        for request in requests:
            found = self._open.get(request.request_id)
            if found is not None and found.stream is stream:
                found.progress = self._postprocessor.begin(request)

    def _on_event(self, event: Event) -> None:
        """Take over what comes, on whatever thread. However much that is, the event loop is woken once until it looks."""
        assert self._loop is not None
        self._events.append(event)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop was closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._process_events)

    def _process_events(self) -> None:
        """Take in all that has come, and build outputs for as long as one slice allows."""
        self._woken = False  # first: what comes from here on may be seen below, and else wakes the loop again
        while self._events:
            event = self._events.popleft()
            if isinstance(event, EngineDead):
                self._build(until=math.inf)
                self._die(event.error)
            else:
                self._take_outputs(event)
        self._build(until=time.monotonic() + SLICE_S)

    def _take_outputs(self, outputs: StepOutputs) -> None:
        self.statistics = outputs.statistics
        for reply in outputs.replies:
            self._answer(reply)
        self._silent_since = self._clock() if outputs.busy or self._questions else None
        for update in outputs.updates:
            found = self._open.get(update.request_id)
            if found is None or found.progress is None:
                continue  # of a request that has ended here, perhaps one before with the same id
            if not found.updates:
                self._unread.append(found)
            found.updates.append(update)
        self._tell_listeners(outputs)

    def _answer(self, reply: Reply) -> None:
        question = self._questions.pop(reply.number, None)
        if question is None or question.reply.done():
            return  # whoever asked has gone
        try:
            if isinstance(reply, Done):
                question.done()
        except Exception:
            logger.exception("the engine could not take in a request")
            error = JaxEngineError("the engine could not take in a request, and the log says why")
            question.reply.set_exception(error)  # whoever asked closes the stream, which aborts
        else:
            question.reply.set_result(reply)

    def _build(self, *, until: float) -> None:
        """Build outputs, oldest first; what is left at the time `until` waits for its turn behind the event loop's other work."""
        while self._unread:
            found = self._unread.popleft()
            updates, found.updates = found.updates, []
            progress = found.progress
            assert progress is not None
            request_id = progress.request.request_id
            if self._open.get(request_id) is not found:
                continue  # it was given up meanwhile
            output, ended = progress.process(updates)
            if ended is not None and self._error is None:
                self._channel.send(ended)
            if progress.finished:
                del self._open[request_id]
            if output is not None:
                found.stream.put(output)
            if time.monotonic() > until:
                if not self._woken:
                    self._woken = True
                    asyncio.get_running_loop().call_soon(self._process_events)
                return

    def _tell_listeners(self, outputs: StepOutputs) -> None:
        for listener in self._listeners:
            for step in outputs.finished_steps:
                listener.on_step(step)
            for finished in outputs.finished:
                listener.on_finished(finished.sequence, finished.request)
            for lost in outputs.lost:
                listener.on_lost(lost.finish_reason, lost.num_sequences)

    def _die(self, error: EngineDeadError) -> None:
        self._error = self._error or error
        self._silent_since = None
        self.fail_all(self._error)
        for question in self._questions.values():
            if not question.reply.done():
                question.reply.set_exception(self._error)
