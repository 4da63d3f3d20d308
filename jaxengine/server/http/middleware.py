"""Small layers of ASGI: the prefix of a proxy, the number of open requests, request ids."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers
from starlette.routing import get_route_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxengine.server.service import Service
from jaxengine.server.telemetry.prometheus import UNCOUNTED

LABEL = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""What a caller's request id may look like; it is only ever a label."""


def label_of(headers: Headers) -> str | None:
    """The caller's X-Request-Id, if it is one."""
    given = headers.get("x-request-id", "")
    return given if LABEL.fullmatch(given) else None


class RootPath:
    """Makes a prefix known that a proxy strips (or leaves on) the path."""

    def __init__(self, app: ASGIApp, *, root_path: str) -> None:
        self._app = app
        self._root_path = "/" + root_path.strip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set the prefix. A path that is the prefix alone is that of the page at its root."""
        own = {"root_path": self._root_path}
        if scope.get("path") == self._root_path:
            own["path"] = f"{self._root_path}/"
        await self._app({**scope, **own}, receive, send)


class CountActive:
    """Keeps `Service.num_active`: requests that have been received and not yet answered to the end."""

    def __init__(self, app: ASGIApp, *, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count a request while it is open."""
        if scope["type"] != "http" or get_route_path(scope) in UNCOUNTED:
            await self._app(scope, receive, send)
            return
        self._service.num_active += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._service.num_active -= 1


class RequestId:
    """Answers with X-Request-Id: the caller's, or one of our own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the header to the answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        label = label_of(Headers(scope=scope)) or uuid.uuid4().hex

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", label.encode())]
            await send(message)

        await self._app(scope, receive, labelled)
