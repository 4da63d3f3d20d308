"""Whose share a request is of, and how long it may take."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from jaxengine.contract.messages import Add, Message
from jaxengine.errors import RequestError
from jaxengine.server.http.terms import digest, share_of, terms_of
from jaxengine.server.telemetry.tracing import Origin
from tests.fakes import GatedRunner
from tests.fronts import make_engine
from tests.server.rig import live

BODY = {"prompt": "Tom has", "max_tokens": 60, "temperature": 0, "ignore_eos": True}


@dataclass
class Body:
    user: str | None = None
    safety_identifier: str | None = None
    resume: bool | None = None
    timeout: float | None = None


def share(key: str, by: str = "user", **body: Any) -> str:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return share_of(Body(**body), Headers(headers), by=by)


def test_a_share_is_of_a_key_and_by_user_of_a_user_of_that_key() -> None:
    assert share("one", "key", user="ann") == share("one", "key", user="bob") != share("two", "key", user="ann")
    assert share("one", user="ann") == share("one", safety_identifier="ann", user="bob")
    assert (
        len({share("one", user="ann"), share("one", user="bob"), share("two", user="ann"), share(""), share("one")})
        == 5
    )
    assert share_of(Body(), Headers({"x-api-key": "one"}), by="key") == share("one", "key")


def test_nothing_of_a_key_is_in_its_share() -> None:
    assert share("secret") == digest("secret", "")
    assert "secret" not in share("secret")
    assert len(share("secret")) == 32
    assert digest("ab", "c") != digest("a", "bc")


def test_the_fewer_seconds_of_field_and_header_count() -> None:
    def left(field: float | None, header: str | None) -> float | None:
        origin = Origin("/v1/completions", {} if header is None else {"x-request-timeout": header})
        return terms_of(Body(timeout=field), origin, by="key").left_s

    for field, header, seconds in ((5, None, 5), (None, "2.5", 2.5), (5, "2", 2), (2, "5", 2)):
        found = left(field, header)
        assert found is not None
        assert seconds - 1 < found <= seconds
    assert left(None, None) is None
    for wrong in ("", "soon", "0", "-1", "nan", "inf", "1e999"):
        with pytest.raises(RequestError, match="X-Request-Timeout must be a positive number of seconds"):
            left(5, wrong)


def test_a_timeout_ends_its_own_request_within_the_servers() -> None:
    with live(make_engine(runner=GatedRunner), request_timeout=20) as server:
        server.runner.allow(3)
        *_, error, done = server.events("/v1/completions", **BODY, timeout=0.2)
        assert (json.loads(error)["error"]["code"], done) == (504, "[DONE]")
        response = server.http.post("/v1/completions", json=BODY, headers={"X-Request-Timeout": "0.2"})
        assert response.status_code == 504
        assert "within its timeout" in response.json()["error"]["message"]
        chat = {"messages": [{"role": "user", "content": "hi"}], "timeout": 0.1}
        for path, body in (
            ("/v1/chat/completions", chat),
            ("/v1/messages", {**chat, "max_tokens": 5}),
            ("/v1/responses", {"input": "hi", "timeout": 0.1}),
            ("/invocations", chat),
        ):
            assert server.post(path, **body).status_code == 504, path


@pytest.mark.parametrize("wrong", [0, -1, "soon", [1], 1e400])
def test_a_timeout_is_a_positive_number(wrong: Any, server: Any) -> None:
    body = json.dumps({**BODY, "timeout": wrong}).replace("Infinity", "1e400")
    response = server.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text


def test_one_in_the_background_fails_with_it() -> None:
    with live(make_engine(runner=GatedRunner)) as server:
        begun = server.post("/v1/responses", input="hi", background=True, timeout=0.2).json()
        deadline = time.monotonic() + 20
        while (found := server.http.get(f"/v1/responses/{begun['id']}").json())["status"] == "queued":
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert found["status"] == "failed"
    assert "within its timeout" in found["error"]["message"]


def test_the_engine_is_told_the_share_and_never_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Message] = []
    with live(fair_share_by="user") as server:
        channel = server.engine.front.channel
        send = channel.send
        monkeypatch.setattr(channel, "send", lambda message: (sent.append(message), send(message)))
        asked: list[tuple[str, dict[str, Any]]] = [
            ("/v1/completions", {"prompt": "a", "user": "ann"}),
            ("/v1/completions", {"prompt": ["a", "b"], "user": "bob"}),
            ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "metadata": {"user_id": "ann"}}),
        ]
        for path, body in asked:
            headers = {"Authorization": "Bearer sk-rutabaga"}
            answer: httpx.Response = server.http.post(path, json={**body, "max_tokens": 1}, headers=headers)
            assert answer.status_code == 200, answer.text
    shares = [request.share for message in sent if isinstance(message, Add) for request in message.requests]
    ann, bob = digest("sk-rutabaga", "ann"), digest("sk-rutabaga", "bob")
    assert shares == [ann, bob, bob, ann]
    assert "rutabaga" not in repr(sent)


def test_a_replica_is_named_by_its_number() -> None:
    with live() as server:
        assert server.http.post("/v1/completions", json=BODY, headers={"X-data-parallel-rank": "0"}).status_code == 200
        for wrong, message in (
            ("1", "names no replica of this server, which has 0"),
            ("-1", "must be the number of a replica, got '-1'"),
            ("", "must be the number of a replica, got ''"),
            ("1e3", "must be the number"),
            ("9" * 4000, "must be the number"),
        ):
            for path, body in (("/v1/completions", BODY), ("/v1/responses", {"input": "hi"})):
                answer = server.http.post(path, json=body, headers={"X-data-parallel-rank": wrong})
                assert answer.status_code == 400, answer.text
                assert message in answer.json()["error"]["message"]
