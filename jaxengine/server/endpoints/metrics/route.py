"""`GET /metrics`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from jaxengine.server.service import ServiceDep

router = APIRouter(include_in_schema=False)


@router.get("/metrics")
async def metrics(request: Request, service: ServiceDep) -> Response:
    """The numbers of the moment, in the form that the scraper accepts."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(service.registry), headers={"Content-Type": content_type})
