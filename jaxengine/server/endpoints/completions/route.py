"""`POST /v1/completions`."""

from __future__ import annotations

from fastapi import Request, Response

from jaxengine.server.endpoints.completions.answer import CompletionAnswer
from jaxengine.server.endpoints.completions.protocol import Completion, CompletionRequest
from jaxengine.server.http.body import json_router
from jaxengine.server.http.middleware import label_of
from jaxengine.server.http.openapi import STREAMED
from jaxengine.server.http.respond import respond
from jaxengine.server.service import ServiceDep

router = json_router("completions")


@router.post("/v1/completions", response_model=Completion, responses=STREAMED)
async def create_completion(body: CompletionRequest, request: Request, service: ServiceDep) -> Response:
    """Continue one or more prompts, whole or as server-sent events."""
    response_id = service.response_id("cmpl", body.request_id or label_of(request.headers))
    answer = CompletionAnswer(body, service, response_id)
    return await respond(answer, body, request, service, streamed=bool(body.stream))
