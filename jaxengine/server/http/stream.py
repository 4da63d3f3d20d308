"""Answers that take their time: server-sent events, and work that ends when its client goes away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jaxengine.server.http.errors import describe
from jaxengine.server.http.pieces import Slices, joined, json_texts

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % b"".join(json_texts(data))


def json_response(data: Mapping[str, Any]) -> Response:
    """A whole answer."""
    texts = json_texts(data)
    return Response(texts[0], media_type="application/json") if len(texts) == 1 else LargeResponse(texts)


class LargeResponse(Response):
    """A whole answer in JSON, sent in pieces."""

    media_type = "application/json"

    def __init__(self, texts: Sequence[bytes]) -> None:
        super().__init__(headers={"content-length": str(sum(map(len, texts)))})
        self._texts = texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, as fast as the client reads and the event loop's other work allows."""
        slices = Slices()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in joined(self._texts):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await slices.turn()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class ClientGoneError(Exception):
    """The client closed its connection before it was answered."""


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client goes away.

    Raises:
        ClientGoneError: it did.
    """
    task = asyncio.ensure_future(work)
    listener = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({task, listener}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        await _cancel(listener)
        await _cancel(task)


class EventStream(Response):
    """Server-sent events as they come. The generator is closed as soon as the client goes away.

    Args:
        events: bytes of whole events. An exception it raises is sent as an event.
        closing: called at the end, however it comes, and also when `events` never got to begin.
        keep_alive_s: seconds of silence after which a comment is sent, so that proxies keep the connection; 0 is never.
        headers: more headers.
        done: sent at the end, also after an error.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        closing: Callable[[], None],
        keep_alive_s: float,
        headers: Mapping[str, str] | None = None,
        done: bytes = DONE,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self._closing = closing
        self._keep_alive_s = keep_alive_s
        self._done = done
        self._last_sent = 0.0
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        writer = asyncio.ensure_future(self._write(send))
        watchers = [asyncio.ensure_future(_disconnected(receive))]
        if self._keep_alive_s:
            watchers.append(asyncio.ensure_future(self._keep_alive(send)))
        try:
            await asyncio.wait({writer, *watchers}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
        finally:
            self._closing()
            for task in (*watchers, writer):
                await _cancel(task)

    async def _write(self, send: Send) -> None:
        self._last_sent = time.monotonic()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events) as events:  # type: ignore[type-var]
            try:
                async for chunk in events:
                    await self._send(send, chunk)
            except Exception as error:
                await self._send(send, event(describe(error)))
        await send({"type": "http.response.body", "body": self._done, "more_body": False})

    async def _send(self, send: Send, chunk: bytes) -> None:
        self._last_sent = time.monotonic()
        await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _keep_alive(self, send: Send) -> None:
        while True:
            silent = time.monotonic() - self._last_sent
            if silent >= self._keep_alive_s:
                await self._send(send, KEEP_ALIVE)
                silent = 0.0
            await asyncio.sleep(self._keep_alive_s - silent)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
