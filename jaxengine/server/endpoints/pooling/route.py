"""`POST /pooling`."""

from __future__ import annotations

from fastapi import Request, Response

from jaxengine.server.endpoints.pooling.answer import PoolingAnswer
from jaxengine.server.endpoints.pooling.protocol import PooledEntries, PoolingRequest
from jaxengine.server.http.body import json_router
from jaxengine.server.http.middleware import label_of
from jaxengine.server.http.respond import respond_whole
from jaxengine.server.service import ServiceDep

router = json_router("pooling")


@router.post("/pooling", response_model=PooledEntries)
async def create_pooling(body: PoolingRequest, request: Request, service: ServiceDep) -> Response:
    """Pool one or more inputs."""
    response_id = service.response_id("pool", body.request_id or label_of(request.headers))
    return await respond_whole(PoolingAnswer(body, service, response_id), body, request, service)
