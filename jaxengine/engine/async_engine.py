"""The engine behind an event loop: one thread steps it, coroutines hand it requests and wait for their outputs.

    event loop                                     engine thread
    submit / ask / abort   -- calls (queue) -->    between steps: run the calls
    OutputStream           <-- one wake-up --      after a step: all its outputs

Everything that touches `EngineCore` runs on the thread, everything that touches a stream on the loop; so neither needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from jaxengine.engine.core import EngineCore
from jaxengine.engine.output_stream import OutputStream, deadline_error
from jaxengine.errors import EngineDeadError, OverloadedError
from jaxengine.outputs import RequestOutput
from jaxengine.request import Request
from jaxengine.scheduler.counters import SchedulerStats

logger = logging.getLogger(__name__)

T = TypeVar("T")

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Who may come in. Zero is no limit.

    `max_requests` and `max_tokens` bound what waits for its first step, `timeout_s` a request's whole life: queue, prompt and
    output. A step that runs longer than `watchdog_s` counts as hung.
    """

    max_requests: int = 0
    max_tokens: int = 0
    timeout_s: float = 0.0
    watchdog_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Call:
    """Work for the engine thread; `future` (of the loop) receives what it returns or raises."""

    function: Callable[[EngineCore], Any]
    future: asyncio.Future[Any] | None


@dataclass(frozen=True, slots=True)
class _Answer:
    future: asyncio.Future[Any]
    value: Any
    error: BaseException | None


class AsyncEngine:
    """Runs an `EngineCore` on a thread of its own. Its methods belong to the event loop that called `start`.

    Args:
        core: nobody else may touch it until `close` has returned.
        admission: limits for those who come in.
        clock: seconds, for deadlines and the watchdog.

    Attributes:
        rejections: how many submissions were refused, by reason (`requests`, `tokens`, `draining`).
        steps: steps run so far; it advances as long as the engine is alive and has work.
    """

    def __init__(self, core: EngineCore, *, admission: Admission | None = None, clock: Clock = time.monotonic) -> None:
        self.admission = admission or Admission()
        self.rejections = {"requests": 0, "tokens": 0, "draining": 0}
        self.steps = 0
        self._core = core
        self._clock = clock
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._streams: dict[str, OutputStream] = {}
        self._pending = 0
        self._pending_tokens = 0
        self._stats = core.scheduler.stats
        self._step_began: float | None = None
        self._error: EngineDeadError | None = None
        self._draining = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def stats(self) -> SchedulerStats:
        """Counts as of the last step."""
        return self._stats

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
        began, limit = self._step_began, self.admission.watchdog_s
        if limit and began is not None and (seconds := self._clock() - began) > limit:
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
                await self.ask(lambda core: _add_all(core, requests))
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

    async def ask(self, function: Callable[[EngineCore], T]) -> T:
        """What `function` returns (or raises) when the engine thread calls it between two steps. It should be quick."""
        future: asyncio.Future[T] = self._running_loop().create_future()
        self._post(_Call(function, future))
        return await future

    def abort(self, request_ids: Sequence[str]) -> None:
        """End exactly these requests before the next step; ids that have ended are passed over."""
        if self._error is None:
            self._calls.put(_Call(lambda core: [core.abort(request_id) for request_id in request_ids], None))
        for request_id in request_ids:  # only now: who sees `num_open` fall may count on the abort being on its way
            self._streams.pop(request_id, None)

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
        self._calls.put(None)
        until = time.monotonic() + patience_s
        while self._thread.is_alive() and time.monotonic() < until:
            await asyncio.sleep(0.005)
        if self._thread.is_alive():
            logger.error("the engine's step has not ended for %g s and is left behind", patience_s)
        self._die(EngineDeadError("the engine was closed"))

    def _admit(self, requests: int, tokens: int) -> None:
        if self._error is not None:
            raise self._error
        if self._draining:
            self._refuse("draining", "the server is shutting down and takes no new requests")
        waiting, limit = self._stats.num_waiting + self._pending, self.admission.max_requests
        if limit and waiting + requests > limit:
            self._refuse("requests", f"{waiting} requests are queued and at most {limit} may be; try again later")
        waiting, limit = self._stats.num_waiting_tokens + self._pending_tokens, self.admission.max_tokens
        if limit and waiting and waiting + tokens > limit:
            self._refuse("tokens", f"{waiting} prompt tokens are queued and at most {limit} may be; try again later")

    def _refuse(self, reason: str, message: str) -> None:
        self.rejections[reason] += 1
        raise OverloadedError(message)

    def _post(self, call: _Call) -> None:
        if self._error is not None:
            raise self._error
        self._calls.put(call)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "start() comes first"
        return self._loop

    # On the loop, called by the thread.

    def _answer(self, answers: Sequence[_Answer]) -> None:
        for answer in answers:
            if answer.future.done():  # whoever asked has gone
                continue
            if answer.error is not None:
                answer.future.set_exception(answer.error)
            else:
                answer.future.set_result(answer.value)

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue
            if output.finished:
                del self._streams[output.request_id]
            stream.put(output)

    def _die(self, error: EngineDeadError) -> None:
        self._error = self._error or error
        self.fail_all(self._error)
        with suppress(Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None and call.future is not None and not call.future.done():
                    call.future.set_exception(self._error)

    # On the thread.

    def _run(self) -> None:
        error = EngineDeadError("the engine was closed")
        try:
            while self._run_calls():
                if self._core.has_unfinished:
                    self._step()
        except BaseException:
            # Clients hear that it happened, not what: the reason may hold addresses, paths, parts of another's request.
            error = EngineDeadError("the engine has stopped: a step failed, and the server's log says why")
            logger.exception("the engine has stopped")
        finally:
            self._step_began = None
            self._core.close()
            self._stats = self._core.scheduler.stats
            self._to_loop(self._die, error)

    def _step(self) -> None:
        self._step_began = self._clock()
        outputs = self._core.step()
        self._step_began = None
        self.steps += 1
        self._stats = self._core.scheduler.stats
        if outputs:
            self._to_loop(self._deliver, outputs)

    def _run_calls(self) -> bool:
        """Run what was asked for, waiting for something to do where there is nothing; False when it is time to end."""
        answers: list[_Answer] = []
        block = not self._core.has_unfinished
        try:
            while True:
                call = self._calls.get(block)
                if call is None:
                    return False
                block = False
                answer = _run_call(call, self._core)
                if answer is not None:
                    answers.append(answer)
        except Empty:
            return True
        finally:
            self._stats = self._core.scheduler.stats
            if answers:
                self._to_loop(self._answer, answers)

    def _to_loop(self, function: Callable[[Any], None], argument: object) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody is left to be told
            self._running_loop().call_soon_threadsafe(function, argument)


def _add_all(core: EngineCore, requests: Sequence[Request]) -> None:
    added = []
    try:
        for request in requests:
            core.add(request)
            added.append(request.request_id)
    except BaseException:
        for request_id in added:
            core.abort(request_id)
        raise


def _run_call(call: _Call, core: EngineCore) -> _Answer | None:
    try:
        value, error = call.function(core), None
    except Exception as raised:
        value, error = None, raised
        if call.future is None:
            logger.exception("the engine could not do what it was asked to")
    return None if call.future is None else _Answer(call.future, value, error)
