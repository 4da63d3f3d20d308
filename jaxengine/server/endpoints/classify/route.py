"""`POST /classify`."""

from __future__ import annotations

from fastapi import Request, Response

from jaxengine.server.endpoints.classify.answer import ClassificationAnswer
from jaxengine.server.endpoints.classify.protocol import ClassificationRequest, Classifications
from jaxengine.server.http.body import json_router
from jaxengine.server.http.middleware import label_of
from jaxengine.server.http.respond import respond_whole
from jaxengine.server.service import ServiceDep

router = json_router("classification")


@router.post("/classify", response_model=Classifications)
async def create_classification(body: ClassificationRequest, request: Request, service: ServiceDep) -> Response:
    """Classify one or more texts."""
    response_id = service.response_id("classify", body.request_id or label_of(request.headers))
    return await respond_whole(ClassificationAnswer(body, service, response_id), body, request, service)
