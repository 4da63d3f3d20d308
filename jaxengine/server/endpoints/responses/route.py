"""`/v1/responses`: make one, count what it would read, look at one that was kept, forget it."""

from __future__ import annotations

import uuid
from typing import Annotated, Literal

from fastapi import Depends, Query, Request, Response

from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.server.conversation.prompt import render_prompt
from jaxengine.server.conversation.tools import template_tools, tool_use
from jaxengine.server.endpoints.endpoint import app_state
from jaxengine.server.endpoints.responses.answer import ResponseAnswer
from jaxengine.server.endpoints.responses.asked import NAMES, all_messages, check_built, conversation_of
from jaxengine.server.endpoints.responses.kept import KeptResponses
from jaxengine.server.endpoints.responses.protocol import (
    DeletedResponse,
    InputTokens,
    InputTokensRequest,
    Item,
    ResponseObject,
    ResponsesRequest,
)
from jaxengine.server.http.body import json_router
from jaxengine.server.http.names import called
from jaxengine.server.http.openapi import STREAMED
from jaxengine.server.http.pages import Page, page_of
from jaxengine.server.http.respond import respond
from jaxengine.server.http.stream import json_response
from jaxengine.server.http.unknown import check_unknown
from jaxengine.server.service import ServiceDep
from jaxengine.server.telemetry.tracing import Origin

OUTPUT_FIELDS = ResponsesRequest.model_fields.keys() - InputTokensRequest.model_fields.keys()
"""What `/v1/responses` reads beside what a response is made from, and counting leaves alone."""

router = json_router("responses")

KeptDep = Annotated[KeptResponses, Depends(app_state(KeptResponses))]


@router.post("/v1/responses", response_model=ResponseObject, responses=STREAMED)
async def create_response(body: ResponsesRequest, request: Request, service: ServiceDep, kept: KeptDep) -> Response:
    """Answer a turn of a conversation, whole or as server-sent events."""
    answer = ResponseAnswer(body, service, f"resp_{uuid.uuid4().hex}", store=kept.store)
    if body.background and not body.stream:
        return json_response(await kept.run(answer, body, Origin.of(request)))
    return await respond(answer, body, request, service, streamed=bool(body.stream), done=b"")


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(body: InputTokensRequest, service: ServiceDep, kept: KeptDep) -> InputTokens:
    """How many tokens a response to the same body would read; the prompt may be longer than the model takes."""
    service.check_model(body.model)
    check_unknown({name: value for name, value in (body.model_extra or {}).items() if name not in OUTPUT_FIELDS})
    check_built(body)
    with called(NAMES):
        asked = conversation_of(body, all_messages(body, kept.store))
        tools = template_tools(asked, tool_use(asked, service), service)
        prompt = await render_prompt(asked, service, tools=tools, must_fit=False)
    return {"object": "response.input_tokens", "input_tokens": len(prompt.token_ids or ())}


@router.get("/v1/responses/{response_id}")
async def get_response(
    response_id: str, kept: KeptDep, stream: bool = False, starting_after: int | None = None
) -> ResponseObject:
    """A response that was kept, or runs in the background: as far as it came, whole."""
    for name, asked in (("stream", stream), ("starting_after", starting_after is not None)):
        if asked:
            raise UnsupportedError.of(
                name, "is not supported: a response that was kept is told whole; look it up again"
            )
    return kept.find(response_id)


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    response_id: str,
    kept: KeptDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Page[Item]:
    """What a response that was kept was made from, without the turns before; the latest first unless `order` is asc."""
    items = kept.store.input_items(response_id)
    if order == "desc":
        items.reverse()
    return page_of(items, limit=limit, after=after, what="input item of this response")


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, kept: KeptDep) -> DeletedResponse:
    """Forget a response that was kept; one that runs in the background ends."""
    await kept.cancel(response_id)
    kept.store.delete(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel", response_model=ResponseObject)
async def cancel_response(response_id: str, kept: KeptDep) -> Response:
    """End a response that runs in the background. One that has ended stays as it is."""
    await kept.cancel(response_id)
    response = kept.store.response(response_id)
    if not response["background"]:
        raise RequestError(
            "Cannot cancel a synchronous response. Only responses that were created with background=true can be cancelled.",
            param="response_id",
        )
    return json_response(response)
