"""Request bodies: bounded in size, read as strict JSON (no NaN, no lone surrogates, bounded nesting and numbers)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxengine.errors import JaxEngineError
from jaxengine.options.option import MIB
from jaxengine.server.http.errors import describe, error_body, error_response
from jaxengine.server.http.stream import ClientGoneError
from jaxengine.server.options import LimitConfig

M = TypeVar("M", bound=BaseModel)

CLIENT_GONE = 499
"""The status that access logs show when the client had gone before it was answered."""


LARGE_BODY = 1 << 16
"""Bytes from which on a body is read away from the event loop, after a look at how much is in it."""

PIECE = 1 << 16
HEAVY = 8
"""What a list, an object or a key takes to read and check, in numbers."""


LINGER_BYTES, LINGER_S = 64 * MIB, 5.0
"""What is still read of a body after it was refused. If the connection were closed at once, the system would reset it on the
next bytes that come, and the client could lose the answer before it reads it (RFC 9112, section 9.6)."""


class JsonRequest(Request):
    """A request whose body is parsed by orjson, which is fast and refuses what is not JSON."""

    async def json(self) -> Any:
        """The parsed body.

        Raises:
            HTTPException: it is not valid JSON, nested too deeply, or of too many values; the answer is a 400.
        """
        if not hasattr(self, "_json"):
            body, service = await self.body(), self.app.state.service
            limits = service.options.limits
            if len(body) < LARGE_BODY:
                self._json = read_json(body, limits)
            else:
                self._json = await service.in_thread(lambda: read_json(body, limits))
        return self._json


def read_json(body: bytes, limits: LimitConfig) -> Any:
    """The parsed body.

    orjson keeps the interpreter until it is done, some 15 ms for a body that is full of values up to the limit.

    Raises:
        HTTPException: it is not valid JSON, nested too deeply, or of too many values.
    """
    if limits.max_json_values and len(body) >= LARGE_BODY and json_values(body) > limits.max_json_values:
        raise HTTPException(
            400, f"The request's body has more values than the {limits.max_json_values} allowed (--max-json-values)"
        )
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"The request's body is not valid JSON: {error}") from None
    limit = limits.max_json_depth
    if limit and body.count(b"[") + body.count(b"{") > limit and depth_exceeds(value, limit):
        raise HTTPException(400, f"The request's body is nested more than {limit} levels deep (--max-json-depth)")
    return value


def read_as(protocol: type[M], body: Any) -> M:
    """A body that is not a route's own argument.

    Raises:
        RequestValidationError: it is malformed.
    """
    try:
        return protocol.model_validate(body)
    except ValidationError as error:
        problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors()]
        raise RequestValidationError(problems) from None


def json_values(body: bytes) -> int:
    """How many values are in a text of JSON, lists, objects and keys counted `HEAVY` times. Looks at piece after piece."""
    total, in_string, begin = 0, 0, 0
    while begin < len(body):
        end = begin + PIECE
        while body[end - 1 : end] == b"\\":  # what it escapes is part of the piece
            end += 1
        piece = body[begin:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b"".join(parts[in_string::2])
        total += outside.count(b",") + HEAVY * sum(outside.count(sign) for sign in (b"[", b"{", b":"))
        in_string = (in_string + len(parts) - 1) % 2
        begin = end
    return total


def depth_exceeds(value: Any, limit: int) -> bool:
    """Whether lists and objects are nested more than `limit` levels deep."""
    level = [value]
    for _ in range(limit + 1):
        containers = [item for item in level if type(item) in (dict, list)]
        if not containers:
            return False
        level = [child for item in containers for child in (item.values() if type(item) is dict else item)]
    return True


class JsonRoute(APIRoute):
    """A route that reads its body through `JsonRequest`, and whose unforeseen errors end its own request only."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler, given a `JsonRequest`."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(JsonRequest(request.scope, request.receive))
            except (ClientGoneError, ClientDisconnect):
                return Response(status_code=CLIENT_GONE)
            except AnyHTTPException as error:
                if isinstance(
                    error.__cause__, ClientDisconnect
                ):  # while it sent its body, which FastAPI takes for a bad one
                    return Response(status_code=CLIENT_GONE)
                raise
            except (RequestValidationError, JaxEngineError):
                raise
            except Exception as error:
                return error_response(describe(error))

        return handle


def json_router(tag: str) -> APIRouter:
    """A router whose bodies are read as strict JSON. Every route file makes its own."""
    return APIRouter(tags=[tag], route_class=JsonRoute)


class LimitBody:
    """ASGI middleware: answers 413 for a body longer than `max_bytes`, before it is in memory."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, counting what it sends."""
        if scope["type"] != "http" or not self._max_bytes:
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise _TooLong
            return message

        try:
            await self._app(scope, counted, send)
        except _TooLong:  # no route answers before it has read its body
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = error_body(
            f"The request's body is longer than the {self._max_bytes} bytes that this server takes (--max-body-bytes).",
            kind="BadRequestError",
            status=413,
        )

        async def send_open(message: Message) -> None:
            await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

        await error_response(body, {"Connection": "close"})(scope, receive, send_open)
        with suppress(TimeoutError):
            await asyncio.wait_for(_discard(receive), LINGER_S)
        await send({"type": "http.response.body"})


async def _discard(receive: Receive) -> None:
    """Read what a client still sends, and drop it."""
    left, more = LINGER_BYTES, True
    while more and left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        more = message.get("more_body", False)


class _TooLong(BaseException):
    """A body went over the limit. No `Exception`, so that the code that parses bodies does not take it for a parse error."""
