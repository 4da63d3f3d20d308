"""The engine behind an event loop: coroutines hand it requests and wait for their outputs.

    event loop                                                 engine thread
    submit / abort / reset        -- messages (queue) ------->   EngineLoop
    Postprocessor                 <-- events (deque, wake-up) --   EngineCore
      OutputStream, listeners
      stop strings                -- Abort ------------------>

The two sides share nothing but what passes between them (`messages.py`): everything that touches `EngineCore` runs on the thread,
everything that touches text, a stream or a listener on the event loop; so neither needs a lock, and between two steps the thread
has no text to make.

The event loop takes all that has come since it last looked. Where it falls behind, one output of a request carries the tokens of
several steps, which is less work for each.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from jaxengine.contract.messages import (
    Abort,
    Accepted,
    Add,
    Close,
    EngineDead,
    Event,
    Message,
    Refused,
    Reply,
    Reset,
    StepOutputs,
    WasReset,
)
from jaxengine.contract.metrics import SchedulerStats, StatsListener
from jaxengine.contract.outputs import RequestOutput
from jaxengine.contract.request import Request
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import EngineDeadError, JaxEngineError, OverloadedError
from jaxengine.front.output_stream import OutputStream, deadline_error
from jaxengine.front.postprocess import Postprocessor
from jaxengine.host.engine.core import EngineCore
from jaxengine.host.engine.loop import EngineLoop

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
class _Question:
    """Somebody waits for a reply. `accepted` is called at its place among the events, before what follows an `Accepted`."""

    reply: asyncio.Future[Reply]
    accepted: Callable[[], None]


class AsyncEngine:
    """Runs an `EngineCore` on a thread of its own. Its methods belong to the event loop that called `start`.

    Args:
        core: nobody else may touch it until `close` has returned.
        postprocessor: builds the outputs, on the event loop.
        admission: limits for those who come in.
        listeners: hear the statistics of every step, on the event loop.
        clock: seconds, for the watchdog.

    Attributes:
        rejections: how many submissions were refused, by reason (`requests`, `tokens`, `draining`).
        steps: steps run so far; it advances as long as the engine is alive and has work.
        stats: the scheduler's counts as of the last step.
    """

    def __init__(
        self,
        core: EngineCore,
        postprocessor: Postprocessor,
        *,
        admission: Admission | None = None,
        listeners: Sequence[StatsListener] = (),
        clock: Clock = time.monotonic,
    ) -> None:
        self.admission = admission or Admission()
        self.rejections = {"requests": 0, "tokens": 0, "draining": 0}
        self.steps = 0
        self.stats = NOTHING_YET
        self._postprocessor = postprocessor
        self._listeners = listeners
        self._clock = clock
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._numbers = itertools.count()
        self._questions: dict[int, _Question] = {}
        self._events: deque[Event] = deque()
        self._woken = False
        self._updates: OrderedDict[str, list[SequenceUpdate]] = OrderedDict()
        self._streams: dict[str, OutputStream] = {}
        self._pending = 0
        self._pending_tokens = 0
        self._silent_since: float | None = None
        self._error: EngineDeadError | None = None
        self._draining = False
        engine_loop = EngineLoop(core, self._messages, self._emit)
        self._thread = threading.Thread(target=engine_loop.run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def num_open(self) -> int:
        """Requests that somebody waits for."""
        return len(self._streams)

    def start(self) -> None:
        """Start the thread, on behalf of the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def check_health(self) -> None:
        """Return when the engine can be trusted with a request.

        Raises:
            EngineDeadError: its thread has ended, or the step in progress takes longer than the watchdog allows.
            OverloadedError: it is about to stop.
        """
        if self._error is not None:
            raise self._error
        if not self._thread.is_alive():
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
            self._streams[request.request_id] = stream
        self._pending += len(requests)
        self._pending_tokens += tokens
        stream.limit_time(self.admission.timeout_s)
        try:
            async with asyncio.timeout(self.admission.timeout_s or None):  # a step that hangs keeps the answer away
                reply = await self._ask(
                    lambda number: Add(number, tuple(requests)), accepted=lambda: self._follow(requests, stream)
                )
            if isinstance(reply, Refused):
                raise reply.error
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
        reply = await self._ask(Reset, accepted=_nothing)
        return isinstance(reply, WasReset) and reply.success

    def abort(self, request_ids: Sequence[str]) -> None:
        """End exactly these requests before the next step; ids that have ended are passed over."""
        if self._error is None:
            self._messages.put(Abort(tuple(request_ids)))
        for request_id in request_ids:  # only now: who sees `num_open` fall may count on the abort being on its way
            self._forget(request_id)

    def drain(self) -> None:
        """Refuse new requests from now on; what was accepted goes on."""
        self._draining = True

    def fail_all(self, error: Exception) -> None:
        """End every open request with `error`."""
        for stream in set(self._streams.values()):
            stream.fail(error)

    async def close(self, *, patience_s: float = 10.0) -> None:
        """End the thread after the step in progress and free the device. Open requests fail. Closing twice is fine.

        A step that does not end within `patience_s` is left behind: it must not keep the process alive.
        """
        self._draining = True
        self._messages.put(Close())
        until = time.monotonic() + patience_s
        while self._thread.is_alive() and time.monotonic() < until:
            await asyncio.sleep(0.005)
        self._leave()

    def join(self, *, patience_s: float = 10.0) -> None:
        """The same as `close` for a caller that is no coroutine: the event loop stands still meanwhile."""
        self._draining = True
        self._messages.put(Close())
        if self._thread.is_alive():
            self._thread.join(patience_s)
        self._leave()

    def _leave(self) -> None:
        """The thread has ended, or had its time to."""
        if self._thread.is_alive():
            logger.error("the engine's step does not end and is left behind")
        self._die(EngineDeadError("the engine was closed"))

    def _admit(self, requests: int, tokens: int) -> None:
        if self._error is not None:
            raise self._error
        if self._draining:
            self._refuse("draining", "the server is shutting down and takes no new requests")
        waiting, limit = self.stats.num_waiting + self._pending, self.admission.max_requests
        if limit and waiting + requests > limit:
            self._refuse("requests", f"{waiting} requests are queued and at most {limit} may be; try again later")
        waiting, limit = self.stats.num_waiting_tokens + self._pending_tokens, self.admission.max_tokens
        if limit and waiting and waiting + tokens > limit:
            self._refuse("tokens", f"{waiting} prompt tokens are queued and at most {limit} may be; try again later")

    def _refuse(self, reason: str, message: str) -> None:
        self.rejections[reason] += 1
        raise OverloadedError(message)

    async def _ask(self, message: Callable[[int], Add | Reset], *, accepted: Callable[[], None]) -> Reply:
        """The reply to a message that is made with a number of its own."""
        if self._error is not None:
            raise self._error
        assert self._loop is not None, "start() comes first"
        number = next(self._numbers)
        reply: asyncio.Future[Reply] = self._loop.create_future()
        self._questions[number] = _Question(reply, accepted)
        if self._silent_since is None:
            self._silent_since = self._clock()
        self._messages.put(message(number))
        try:
            return await reply
        finally:
            self._questions.pop(number, None)

    def _follow(self, requests: Sequence[Request], stream: OutputStream) -> None:
        """Build outputs of these requests from now on, of those for which `stream` still waits."""
        for request in requests:
            request_id = request.request_id
            if self._streams.get(request_id) is stream:
                self._updates.pop(request_id, None)  # of one before it, which had the same id
                self._postprocessor.add(request)

    def _forget(self, request_id: str) -> None:
        """What still comes for this request is dropped."""
        self._streams.pop(request_id, None)
        self._updates.pop(request_id, None)
        self._postprocessor.discard(request_id)

    def _emit(self, event: Event) -> None:
        """Pass on what the engine's thread has to tell. However much that is, the event loop is woken once until it looks."""
        assert self._loop is not None
        self._events.append(event)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop was closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        """Take in all that has come, and build outputs for as long as one slice allows."""
        self._woken = False  # first: what comes from here on may be seen below, and else wakes the loop again
        while self._events:
            event = self._events.popleft()
            if isinstance(event, EngineDead):
                self._build(until=math.inf)
                self._die(event.error)
            else:
                self._hear(event)
        self._build(until=time.monotonic() + SLICE_S)

    def _hear(self, news: StepOutputs) -> None:
        self.steps, self.stats = news.num_steps, news.stats
        for reply in news.replies:
            self._answer(reply)
        self._silent_since = self._clock() if news.busy or self._questions else None
        for update in news.updates:
            self._updates.setdefault(update.request_id, []).append(update)
        self._tell_listeners(news)

    def _answer(self, reply: Reply) -> None:
        question = self._questions.pop(reply.number, None)
        if question is None or question.reply.done():
            return  # whoever asked has gone
        try:
            if isinstance(reply, Accepted):
                question.accepted()
        except Exception:
            logger.exception("the engine could not take in a request")
            error = JaxEngineError("the engine could not take in a request, and the log says why")
            question.reply.set_exception(error)  # whoever asked closes the stream, which aborts
        else:
            question.reply.set_result(reply)

    def _build(self, *, until: float) -> None:
        """Build outputs, oldest first; what is left at the time `until` waits for its turn behind the event loop's other work."""
        while self._updates:
            _, updates = self._updates.popitem(last=False)
            output, ended = self._postprocessor.process(updates)
            if ended is not None and self._error is None:
                self._messages.put(ended)
            if output is not None:
                self._deliver(output)
            if time.monotonic() > until:
                if not self._woken:
                    self._woken = True
                    asyncio.get_running_loop().call_soon(self._look)
                return

    def _deliver(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None:
            return
        if output.finished:
            del self._streams[output.request_id]
        stream.put(output)

    def _tell_listeners(self, news: StepOutputs) -> None:
        for listener in self._listeners:
            for step in news.finished_steps:
                listener.on_step(step)
            for finished in news.finished:
                listener.on_finished(finished.sequence, finished.request)
            for lost in news.lost:
                listener.on_lost(lost.finish_reason, lost.num_sequences)

    def _die(self, error: EngineDeadError) -> None:
        self._error = self._error or error
        self._silent_since = None
        self.fail_all(self._error)
        for question in self._questions.values():
            if not question.reply.done():
                question.reply.set_exception(self._error)


def _nothing() -> None:
    """For a question whose answer changes nothing here."""


NOTHING_YET = SchedulerStats(
    num_running=0,
    num_waiting=0,
    num_waiting_tokens=0,
    num_preemptions=0,
    kv_cache_usage=0.0,
    prefix_cache_queries=0,
    prefix_cache_hits=0,
    shapes={},
)
"""The counts before the engine was heard of."""
