"""Traces of a running server, under the paths of vLLM's benchmark client."""

from __future__ import annotations

from fastapi import Response

from jaxengine.server.http.body import json_router
from jaxengine.server.service import ServiceDep

router = json_router("server")


@router.post("/start_profile")
async def start_profile(service: ServiceDep) -> Response:
    """Begin a trace, on a server that was started with `--profile DIR`."""
    await service.engine.profile(begin=True)
    return Response()


@router.post("/stop_profile")
async def stop_profile(service: ServiceDep) -> Response:
    """End the trace and write it."""
    await service.engine.profile(begin=False)
    return Response()
