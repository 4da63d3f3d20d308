"""What an endpoint is to the app: routes, and perhaps something that it keeps while the app lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fastapi import APIRouter, Request

from jaxengine.errors import RequestError
from jaxengine.server.service import Service


class NotServedError(RequestError):
    """An endpoint that this server was not asked to serve."""

    http_status = 404
    openai_type = "NotFoundError"


class Kept(Protocol):
    """Something that an endpoint keeps, such as work that goes on between requests."""

    def start(self) -> None:
        """Begin, on the running event loop, once the engine has."""
        ...

    async def close(self) -> None:
        """End, before the engine does."""
        ...


K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row of the app's table. `keeps` makes what it keeps; routes find that with `app_state`."""

    router: APIRouter
    keeps: Callable[[Service], Kept] | None = None


def app_state(kind: type[K]) -> Callable[[Request], K]:
    """A dependency of routes: what an endpoint keeps, by its class."""

    def find(request: Request) -> K:
        found: K = request.app.state.kept[kind]
        return found

    return find
