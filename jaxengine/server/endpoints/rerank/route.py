"""`POST /rerank`, `/v1/rerank`, `/v2/rerank`."""

from __future__ import annotations

from fastapi import Request, Response

from jaxengine.server.endpoints.rerank.answer import RerankAnswer
from jaxengine.server.endpoints.rerank.protocol import Reranked, RerankRequest
from jaxengine.server.http.body import json_router
from jaxengine.server.http.middleware import label_of
from jaxengine.server.http.respond import respond_whole
from jaxengine.server.service import ServiceDep

router = json_router("scores")


@router.post("/rerank", response_model=Reranked)
@router.post("/v1/rerank", response_model=Reranked)
async def do_rerank(body: RerankRequest, request: Request, service: ServiceDep) -> Response:
    """Order documents by how well they fit a query."""
    response_id = service.response_id("score", body.request_id or label_of(request.headers))
    return await respond_whole(RerankAnswer(body, service, response_id), body, request, service)


@router.post("/v2/rerank", response_model=Reranked)
async def do_rerank_v2(body: RerankRequest, request: Request, service: ServiceDep) -> Response:
    """The same, with Cohere's `meta` in the answer."""
    response_id = service.response_id("score", body.request_id or label_of(request.headers))
    return await respond_whole(RerankAnswer(body, service, response_id, version="2"), body, request, service)
