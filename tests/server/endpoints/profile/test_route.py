"""Traces over HTTP: passed on to the engine, whose refusals are answers."""

from __future__ import annotations

import pytest

from jaxengine.front.front import Front
from tests.server.rig import Live


def test_traces_are_asked_of_the_engine(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    assert server.http.post("/start_profile").status_code == 400
    monkeypatch.setattr(Front, "start_profile", lambda front: asked.append("start"))
    monkeypatch.setattr(Front, "stop_profile", lambda front: asked.append("stop"))
    assert server.http.post("/start_profile").status_code == 200
    assert server.http.post("/stop_profile").status_code == 200
    assert asked == ["start", "stop"]
