"""What an operator asks of a running server."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from typing_extensions import TypedDict

from jaxengine.errors import RequestError
from jaxengine.server.http.body import json_router
from jaxengine.server.service import ServiceDep

router = json_router("server")

PATIENCE_S = 30.0
"""How long requests of an engine may go on before it is restarted without them."""


class ResetResult(TypedDict):
    """Whether every cached prefix was forgotten; false while requests hold some of them."""

    success: bool


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(service: ServiceDep) -> ResetResult:
    """Forget all cached prefixes, for example between measurements."""
    return {"success": await service.engine.reset_prefix_cache()}


class EngineState(TypedDict):
    """One of the engines behind this server, by its rank."""

    engine: int
    ready: bool
    draining: bool
    requests: int
    restarts: int
    deaths: dict[str, int]


class Engines(TypedDict):
    """All of them. Requests are served as long as one is ready."""

    engines: list[EngineState]


@router.get("/engines")
async def engines(service: ServiceDep) -> Engines:
    """Which engines take requests, how many each has, and what became of those before them."""
    ranks = service.front.config.parallel.ranks
    states = zip(ranks, service.front.channel.condition.engines, strict=False)
    return {
        "engines": [
            {
                "engine": rank,
                "ready": state.ready,
                "draining": state.draining,
                "requests": state.num_requests,
                "restarts": state.num_restarts,
                "deaths": dict(state.deaths),
            }
            for rank, state in states
        ]
    }


@router.post("/engines/{engine}/restart", responses={503: {"description": "The engine is not ready."}})
async def restart(
    service: ServiceDep, engine: int, timeout: Annotated[float, Query(ge=0, le=86_400)] = PATIENCE_S
) -> Response:
    """Drain an engine, end it and start another in its place; answers when that is ready.

    Its requests have `timeout` seconds to end. Those that have not go on where they were, at another engine or at the next one.
    """
    ranks = service.front.config.parallel.ranks
    if engine not in ranks:
        raise RequestError(f"there is no engine {engine}; there are {', '.join(map(str, ranks))}", param="engine")
    await service.engine.restart(ranks.index(engine), patience_s=timeout)
    return Response()
