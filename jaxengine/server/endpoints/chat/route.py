"""`POST /v1/chat/completions`."""

from __future__ import annotations

from fastapi import Request, Response

from jaxengine.server.endpoints.chat.answer import ChatAnswer
from jaxengine.server.endpoints.chat.protocol import ChatCompletion, ChatCompletionRequest
from jaxengine.server.http.body import json_router
from jaxengine.server.http.middleware import label_of
from jaxengine.server.http.openapi import STREAMED
from jaxengine.server.http.respond import respond
from jaxengine.server.service import ServiceDep

router = json_router("chat")


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=STREAMED)
async def create_chat_completion(body: ChatCompletionRequest, request: Request, service: ServiceDep) -> Response:
    """Answer a conversation, whole or as server-sent events."""
    response_id = service.response_id("chatcmpl", body.request_id or label_of(request.headers))
    answer = ChatAnswer(body, service, response_id)
    return await respond(answer, body, request, service, streamed=bool(body.stream))
