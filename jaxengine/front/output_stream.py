"""What a coroutine holds of its requests: their outputs as they come, and the duty to abort what it no longer wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic

from typing_extensions import TypeVar

from jaxengine.contract.outputs import CompletionOutput, PooledOutput, PoolingRequestOutput, RequestOutput
from jaxengine.errors import DeadlineError

Told = TypeVar("Told", RequestOutput, PooledOutput, default=RequestOutput)


class OutputStream(Generic[Told]):
    """The outputs of requests that were submitted together, as lists of what came since the last one.

    Iterate it; use it in a `with` block, which aborts on leaving whatever has not ended.

        with await engine.submit(requests) as stream:
            async for outputs in stream: ...

    Args:
        abort: ends requests by their ids.
        request_ids: whose outputs will come.
        pause: has no more made for requests, or lets them go on.
        max_unread: tokens that may wait to be read; more pause the requests until all are read. 0 is no limit.

    Attributes:
        on_lost: called with the ids of requests that end before their time, and why: `abort`, `error`, or the class of an error.
    """

    def __init__(
        self,
        abort: Callable[[Sequence[str]], None],
        request_ids: Sequence[str],
        *,
        pause: Callable[[Sequence[str], bool], None] = lambda request_ids, paused: None,
        max_unread: int = 0,
    ) -> None:
        self._abort = abort
        self._pause = pause
        self._max_unread = max_unread
        self._unread = 0
        self._paused = False
        self._open = dict.fromkeys(request_ids)  # a set in the order of the requests, so that one run is like another
        self._outputs: list[Told] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.on_lost: Callable[[Sequence[str], str], None] = lambda request_ids, why: None

    def __enter__(self) -> OutputStream[Told]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> OutputStream[Told]:
        return self

    async def __anext__(self) -> list[Told]:
        """Everything that is new; waits until there is something.

        Raises:
            DeadlineError: the time for the request is over.
            EngineDeadError: the engine stopped.
        """
        while not self._outputs:
            if self._error is not None:
                raise self._error
            if not self._open:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        outputs, self._outputs = self._outputs, []
        self._unread = 0
        if self._paused:
            self._paused = False
            self._pause(list(self._open), False)
        return outputs

    def put(self, output: Told) -> None:
        """Add an output of one of the requests."""
        self._outputs.append(output)
        completions: tuple[CompletionOutput, ...] = output.outputs if isinstance(output, RequestOutput) else ()
        self._unread += sum(len(completion.token_ids) for completion in completions)
        if output.finished:
            self._open.pop(output.request_id, None)
            for completion in completions:
                if completion.finish_reason in ("abort", "error"):
                    self.on_lost([output.request_id], completion.finish_reason)
            if isinstance(output, PoolingRequestOutput) and output.aborted:
                self.on_lost([output.request_id], "abort")
            if not self._open:
                self._stop_timer()
        self._limit_unread(output.request_id)
        self._wake()

    def _limit_unread(self, request_id: str) -> None:
        """Pause all requests, or again this one, of which an engine that was started anew may not have heard that it is."""
        if self._max_unread and self._unread > self._max_unread and self._open:
            self._pause([request_id] if self._paused else list(self._open), True)
            self._paused = True

    def limit_time(self, seconds: float, error: DeadlineError) -> None:
        """Fail with `error` unless all is done after so many seconds."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.fail, error)

    def fail(self, error: Exception) -> None:
        """End the stream with an error, after what came before it; its requests are aborted."""
        if self._open and self._error is None:
            self._error = error
            self.close()

    def close(self) -> None:
        """Abort what has not ended; whoever waits for an output sees the end. Closing twice is fine."""
        self._stop_timer()
        if self._open:
            self._abort(list(self._open))
            self.on_lost(list(self._open), "abort" if self._error is None else type(self._error).__name__)
            self._open.clear()
            self._wake()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
