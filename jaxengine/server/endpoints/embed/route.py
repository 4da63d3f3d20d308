"""`POST /v2/embed`."""

from __future__ import annotations

from fastapi import Request, Response

from jaxengine.server.endpoints.embed.answer import CohereAnswer
from jaxengine.server.endpoints.embed.protocol import EmbedAnswer, EmbedRequest
from jaxengine.server.http.body import json_router
from jaxengine.server.http.middleware import label_of
from jaxengine.server.http.respond import respond_whole
from jaxengine.server.service import ServiceDep

router = json_router("embeddings")


@router.post("/v2/embed", response_model=EmbedAnswer)
async def create_embed(body: EmbedRequest, request: Request, service: ServiceDep) -> Response:
    """Embed texts, in Cohere's form."""
    response_id = service.response_id("embd", label_of(request.headers))
    return await respond_whole(CohereAnswer(body, service, response_id), body, request, service)
