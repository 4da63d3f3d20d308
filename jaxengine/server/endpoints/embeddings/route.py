"""`POST /v1/embeddings`."""

from __future__ import annotations

from fastapi import Request, Response

from jaxengine.server.endpoints.embeddings.answer import EmbeddingAnswer
from jaxengine.server.endpoints.embeddings.protocol import EmbeddingRequest, Embeddings
from jaxengine.server.http.body import json_router
from jaxengine.server.http.middleware import label_of
from jaxengine.server.http.respond import respond_whole
from jaxengine.server.service import ServiceDep

router = json_router("embeddings")


@router.post("/v1/embeddings", response_model=Embeddings)
async def create_embedding(body: EmbeddingRequest, request: Request, service: ServiceDep) -> Response:
    """Embed one or more texts."""
    response_id = service.response_id("embd", body.request_id or label_of(request.headers))
    return await respond_whole(EmbeddingAnswer(body, service, response_id), body, request, service)
