"""Traces over HTTP: passed on to the engine, whose refusals are answers."""

from __future__ import annotations

import pytest

from jaxengine.contract.messages import Done, Profile, Reply
from tests.server.rig import Live


def test_traces_are_asked_of_the_engine(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.http.post("/start_profile").status_code == 400
    take, asked = server.engine.host.take, []

    def tracing(message: object) -> Reply | None:
        if not isinstance(message, Profile):
            return take(message)  # type: ignore[arg-type]
        asked.append(message.begin)
        return Done(message.number)

    monkeypatch.setattr(server.engine.host, "take", tracing)
    assert server.http.post("/start_profile").status_code == 200
    assert server.http.post("/stop_profile").status_code == 200
    assert asked == [True, False]
