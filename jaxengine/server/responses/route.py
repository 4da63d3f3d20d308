"""`/v1/responses`: make one, look at one that was kept, forget it."""

from __future__ import annotations

import uuid
from typing import Annotated, Literal

from fastapi import Query, Request, Response

from jaxengine.errors import RequestError
from jaxengine.server.http.body import json_router
from jaxengine.server.http.openapi import STREAMED
from jaxengine.server.http.respond import respond
from jaxengine.server.responses.answer import ResponseAnswer
from jaxengine.server.responses.protocol import DeletedResponse, InputItems, ResponseObject, ResponsesRequest
from jaxengine.server.service import ServiceDep

router = json_router("responses")


@router.post("/v1/responses", response_model=ResponseObject, responses=STREAMED)
async def create_response(body: ResponsesRequest, request: Request, service: ServiceDep) -> Response:
    """Answer a turn of a conversation, whole or as server-sent events."""
    answer = ResponseAnswer(body, service, f"resp_{uuid.uuid4().hex}")
    return await respond(answer, request, service, streamed=bool(body.stream), done=b"")


@router.get("/v1/responses/{response_id}")
async def get_response(response_id: str, service: ServiceDep) -> ResponseObject:
    """A response that was kept."""
    return service.responses.response(response_id)


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    response_id: str,
    service: ServiceDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> InputItems:
    """What a response that was kept was made from, without the turns before; the latest first unless `order` is asc."""
    items = service.responses.input_items(response_id)
    if order == "desc":
        items.reverse()
    if after is not None:
        places = [index for index, item in enumerate(items) if item["id"] == after]
        if not places:
            raise RequestError(f"after={after[:100]!r} is no input item of this response", param="after")
        items = items[places[0] + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, service: ServiceDep) -> DeletedResponse:
    """Forget a response that was kept."""
    service.responses.delete(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel", response_model=ResponseObject)
async def cancel_response(response_id: str, service: ServiceDep) -> Response:
    """Only background responses can be cancelled, and there are none: close the connection of a running one instead."""
    service.responses.response(response_id)
    raise RequestError("Only responses that were created with background=true can be cancelled.", param="response_id")
