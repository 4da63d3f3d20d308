"""What the pages are told of this server, which needs a key where there are keys. Their files are in `files.py`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from jaxengine.server.endpoints.endpoint import Endpoint, app_state
from jaxengine.server.http.stream import EventStream
from jaxengine.server.pages.about import about
from jaxengine.server.pages.feed import END, Feed
from jaxengine.server.pages.files import HEADERS
from jaxengine.server.service import ServiceDep

router = APIRouter(include_in_schema=False)


@router.get("/playground/about")
async def playground_about(service: ServiceDep) -> dict[str, Any]:
    """What the model can do."""
    return about(service)


@router.get("/dashboard/stream")
async def dashboard_stream(feed: Annotated[Feed, Depends(app_state(Feed))]) -> Response:
    """Server-sent events: `{"facts": ...}` first, then a snapshot a second."""
    return EventStream(feed.events(), closing=lambda: None, keep_alive_s=0, headers=HEADERS, done=END)


PAGES = Endpoint(router, keeps=Feed)
