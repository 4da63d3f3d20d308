"""`POST /invocations`: the one path that SageMaker calls, for whatever a body asks. Its health check is `/ping`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request, Response
from pydantic import BaseModel

from jaxengine.errors import RequestError
from jaxengine.server.endpoints.chat.protocol import ChatCompletionRequest
from jaxengine.server.endpoints.chat.route import create_chat_completion
from jaxengine.server.endpoints.completions.protocol import CompletionRequest
from jaxengine.server.endpoints.completions.route import create_completion
from jaxengine.server.endpoints.embeddings.protocol import EmbeddingRequest
from jaxengine.server.endpoints.embeddings.route import create_embedding
from jaxengine.server.http.body import json_router, read_as
from jaxengine.server.http.fields import JsonObject
from jaxengine.server.http.openapi import STREAMED
from jaxengine.server.service import ServiceDep

router = json_router("server")

ENDPOINTS: dict[str, tuple[type[BaseModel], Callable[..., Awaitable[Response]]]] = {
    "messages": (ChatCompletionRequest, create_chat_completion),
    "prompt": (CompletionRequest, create_completion),
    "input": (EmbeddingRequest, create_embedding),
}
"""By the field that only their bodies have: chat, completions, embeddings."""


@router.post("/invocations", responses=STREAMED)
async def invoke(body: JsonObject, request: Request, service: ServiceDep) -> Response:
    """What `/v1/chat/completions`, `/v1/completions` or `/v1/embeddings` answers to the same body."""
    for field, (protocol, endpoint) in ENDPOINTS.items():
        if body.get(field) is not None:
            return await endpoint(read_as(protocol, body), request, service)
    raise RequestError(f"the body must have one of {', '.join(ENDPOINTS)}")
