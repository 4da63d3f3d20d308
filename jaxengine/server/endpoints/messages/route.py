"""`POST /v1/messages` and `/v1/messages/count_tokens`, as Anthropic's clients call them."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Request, Response

from jaxengine.server.conversation.prompt import render_prompt
from jaxengine.server.conversation.tools import template_tools, tool_use
from jaxengine.server.endpoints.messages.answer import MessageAnswer
from jaxengine.server.endpoints.messages.errors import MessagesRoute
from jaxengine.server.endpoints.messages.input import conversation_of
from jaxengine.server.endpoints.messages.protocol import CountRequest, Message, MessagesRequest, TokenCount
from jaxengine.server.http.openapi import STREAMED
from jaxengine.server.http.respond import respond
from jaxengine.server.http.unknown import check_unknown
from jaxengine.server.service import ServiceDep

SAMPLING_FIELDS = MessagesRequest.model_fields.keys() - CountRequest.model_fields.keys() - {"max_tokens"}
"""What `/v1/messages` reads beside a conversation, and counting leaves alone."""

router = APIRouter(tags=["messages"], route_class=MessagesRoute)


@router.post("/v1/messages", response_model=Message, responses=STREAMED)
async def create_message(body: MessagesRequest, request: Request, service: ServiceDep) -> Response:
    """Answer a conversation, whole or as server-sent events."""
    named = (body.metadata or {}).get("user_id")  # as Anthropic's API calls it
    if body.user is None and isinstance(named, str):
        body.user = named
    answer = MessageAnswer(body, service, f"msg_{uuid.uuid4().hex}")
    return await respond(answer, body, request, service, streamed=bool(body.stream), done=b"")


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountRequest, service: ServiceDep) -> TokenCount:
    """How many tokens the chat template makes of a conversation and its tools."""
    service.check_model(body.model)
    check_unknown({name: value for name, value in (body.model_extra or {}).items() if name not in SAMPLING_FIELDS})
    asked = conversation_of(body)
    tools = template_tools(asked, tool_use(asked, service), service)
    prompt = await render_prompt(asked, service, tools=tools, must_fit=False)
    return {"input_tokens": len(prompt.token_ids or ())}
