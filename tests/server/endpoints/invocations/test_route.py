"""`/invocations` answers what the endpoint does whose body it gets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.rig import Live

HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Tom", "max_tokens": 4, "temperature": 0}),
        ("/v1/chat/completions", {"messages": HI, "max_tokens": 4, "temperature": 0}),
        ("/v1/embeddings", {"input": "Tom"}),
    ],
)
def test_the_answer_is_that_of_the_endpoint(server: Live, path: str, body: dict[str, Any]) -> None:
    varying = {"id": "", "created": 0}
    server.post(path, **body)  # from here on its prompt is cached
    assert {**server.post("/invocations", **body).json(), **varying} == {**server.post(path, **body).json(), **varying}
    wrong = {**body, "model": "other"}
    assert server.post("/invocations", **wrong).json() == server.post(path, **wrong).json()
    if path != "/v1/embeddings":
        assert server.events("/invocations", **body)[-1] == "[DONE]"
        malformed = {**body, "max_tokens": "many"}
        assert server.post("/invocations", **malformed).json() == server.post(path, **malformed).json()


def test_other_bodies_are_refused_and_ping_answers(server: Live) -> None:
    for body in ({}, {"prompt": None}):
        refused = server.post("/invocations", **body)
        assert refused.status_code == 400
        assert "one of messages, prompt, input" in refused.json()["error"]["message"]
    for content in (b"{", b"[]", b'"a"', b""):
        assert server.http.post("/invocations", content=content).status_code == 400
    assert server.http.get("/ping").status_code == 200
