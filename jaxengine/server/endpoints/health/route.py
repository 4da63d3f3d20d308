"""Is the server well, what is it, how busy is it."""

from __future__ import annotations

from fastapi import Response
from typing_extensions import TypedDict

from jaxengine import __version__
from jaxengine.server.http.body import json_router
from jaxengine.server.service import ServiceDep

router = json_router("server")


class Version(TypedDict):
    """The version of jaxengine."""

    version: str


class Load(TypedDict):
    """How many requests are open."""

    server_load: int


@router.get("/health", response_class=Response)
@router.get("/ping", response_class=Response)
@router.post("/ping", response_class=Response)
async def health(service: ServiceDep) -> Response:
    """200 when the engine can be trusted with a request; 503 when it has stopped, hangs, or is about to stop."""
    service.engine.check_health()
    return Response()


@router.get("/version")
async def version() -> Version:
    """The version of jaxengine."""
    return {"version": __version__}


@router.get("/load")
async def load(service: ServiceDep) -> Load:
    """How many requests are open."""
    return {"server_load": service.num_active}
