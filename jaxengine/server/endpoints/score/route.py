"""`POST /score`, `/v1/score`."""

from __future__ import annotations

from fastapi import Request, Response

from jaxengine.server.endpoints.score.answer import ScoreAnswer
from jaxengine.server.endpoints.score.protocol import ScoreRequest, Scores
from jaxengine.server.http.body import json_router
from jaxengine.server.http.middleware import label_of
from jaxengine.server.http.respond import respond_whole
from jaxengine.server.service import ServiceDep

router = json_router("scores")


@router.post("/score", response_model=Scores)
@router.post("/v1/score", response_model=Scores)
async def create_score(body: ScoreRequest, request: Request, service: ServiceDep) -> Response:
    """Say how well texts fit."""
    response_id = service.response_id("score", body.request_id or label_of(request.headers))
    return await respond_whole(ScoreAnswer(body, service, response_id), body, request, service)
