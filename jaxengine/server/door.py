"""The app of a server whose engines start beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxengine.front.starting import StartingEngine
from jaxengine.server.app import create_app
from jaxengine.server.service import Service


@dataclass(frozen=True, slots=True)
class Opened:
    """What there is once the engine is ready."""

    service: Service
    app: FastAPI


class Door:
    """An app that is there from the first moment: it passes requests to one that says how the start goes, then to the real one.

    Args:
        engines: the engines, which are closed where the start is given up.
        starting: answers until the engine is ready.
        make: waits for that, on a thread, and makes the service.
        on_open: is called when requests are answered.
        on_failure: is called when they never will be; `error` says why.
    """

    def __init__(
        self,
        engines: Sequence[StartingEngine],
        starting: ASGIApp,
        make: Callable[[], Service],
        *,
        on_open: Callable[[Service], None],
        on_failure: Callable[[], None],
    ) -> None:
        self.error: Exception | None = None
        self.opened = False
        self._engines = engines
        self._app = starting
        self._make = make
        self._on_open = on_open
        self._on_failure = on_failure
        self._life = Router(lifespan=self._lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        await (self._life if scope["type"] == "lifespan" else self._app)(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _: ASGIApp) -> AsyncIterator[None]:
        end = asyncio.Event()
        opening = asyncio.create_task(self._open(end))
        try:
            yield
        finally:
            end.set()
            if not self.opened:
                opening.cancel()
            await asyncio.wait([opening])

    async def _open(self, end: asyncio.Event) -> None:
        """Open the door when the engine is ready, until the `end`."""
        try:
            opened = await asyncio.to_thread(self._prepare)
            async with opened.app.router.lifespan_context(opened.app):
                self._app, self.opened = opened.app, True
                self._on_open(opened.service)
                await end.wait()
        except asyncio.CancelledError:
            for engine in self._engines:
                engine.close()  # or else the thread waits for it
            raise
        except Exception as error:
            self.error = error
            self._on_failure()

    def _prepare(self) -> Opened:
        service = self._make()
        return Opened(service, create_app(service))
