"""What a coroutine holds of its requests: their outputs as they come, and the duty to abort what it no longer wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType

from jaxengine.contract.outputs import RequestOutput
from jaxengine.errors import DeadlineError


class OutputStream:
    """The outputs of requests that were submitted together, as lists of what came since the last one.

    Iterate it; use it in a `with` block, which aborts on leaving whatever has not ended.

        with await engine.submit(requests) as stream:
            async for outputs in stream: ...

    Args:
        abort: ends requests by their ids.
        request_ids: whose outputs will come.
    """

    def __init__(self, abort: Callable[[Sequence[str]], None], request_ids: Sequence[str]) -> None:
        self._abort = abort
        self._open = set(request_ids)
        self._outputs: list[RequestOutput] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> OutputStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> list[RequestOutput]:
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
        return outputs

    def put(self, output: RequestOutput) -> None:
        """Add an output of one of the requests."""
        self._outputs.append(output)
        if output.finished:
            self._open.discard(output.request_id)
            if not self._open:
                self._stop_timer()
        self._wake()

    def limit_time(self, seconds: float) -> None:
        """Fail with a DeadlineError unless all is done after so many seconds; 0 is no limit."""
        if seconds and self._open:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.fail, deadline_error(seconds))

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
            self._open.clear()
            self._wake()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def deadline_error(seconds: float) -> DeadlineError:
    """What a request is told that took too long."""
    return DeadlineError(
        f"the request was not done within {seconds:g} s, the longest that this server allows (--request-timeout)"
    )
