"""Adding an endpoint: a router, perhaps something that it keeps, and one row of the app's table."""

from __future__ import annotations

from typing import Annotated

import pytest
from fastapi import Depends

from jaxengine.server import app
from jaxengine.server.endpoints.endpoint import Endpoint, app_state
from jaxengine.server.http.body import json_router
from jaxengine.server.service import Service
from tests.server.rig import live

router = json_router("visits")


class Visits:
    """Counts, while the app lives."""

    def __init__(self, service: Service) -> None:
        self.name = service.model_names[0]
        self.count = 0
        self.told: list[str] = []

    def start(self) -> None:
        self.told.append("start")

    async def close(self) -> None:
        self.told.append("close")


@router.get("/visits")
async def visit(visits: Annotated[Visits, Depends(app_state(Visits))]) -> dict[str, int]:
    visits.count += 1
    return {visits.name: visits.count}


def test_one_row_brings_routes_and_what_they_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "ENDPOINTS", (*app.ENDPOINTS, Endpoint(router, keeps=Visits)))
    with live() as server:
        assert [server.http.get("/visits").json() for _ in range(2)] == [{"tiny": 1}, {"tiny": 2}]
        assert "/visits" in server.http.get("/openapi.json").json()["paths"]
        visits = server.app.state.kept[Visits]
        assert visits.told == ["start"]
    assert visits.told == ["start", "close"]
