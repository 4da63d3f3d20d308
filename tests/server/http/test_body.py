"""Request bodies: bounded in size and depth, strict JSON, of the right type."""

from __future__ import annotations

import logging
import random
import socket
import time
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from jaxengine.server.endpoints.completions.protocol import CompletionRequest
from jaxengine.server.http.body import HEAVY, PIECE, json_values
from tests.server.rig import Live, live

BODY = {"prompt": "Tom", "max_tokens": 2, "temperature": 0}


def test_bodies_are_bounded(server: Live) -> None:
    with live(max_body_bytes=1000) as small:
        for content in (b'{"prompt": "' + b"a" * 2000 + b'"}', (b"x" * 600 for _ in range(3))):
            response = small.http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
            assert response.status_code == 413
            assert "1000 bytes" in response.json()["error"]["message"]
        assert small.post("/v1/completions", **BODY).status_code == 200
    assert server.post("/v1/completions", **BODY).status_code == 200


def test_a_client_that_is_still_sending_gets_the_answer() -> None:
    """The connection is open until all of the body has come: a reset would take an answer away that was not read yet."""
    declared = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000\r\n\r\n"
    with live(max_body_bytes=1000) as small:
        port = int(small.url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(declared)
            answer = b""
            while b"1000 bytes" not in answer:
                answer += connection.recv(65536)
            for _ in range(3):
                connection.sendall(b"x" * 1000)
                time.sleep(0.05)
            assert connection.recv(1) == b"", "it is closed then"
    assert answer.startswith(b"HTTP/1.1 413")


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "needs a JSON object as its body"),
        (b"{", "not valid JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "not valid JSON"),
        (b'{"prompt": "\\ud800"}', "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b'{"prompt": ' + b"[" * 30_000, "not valid JSON"),
        (b'{"prompt": ' + b"[" * 100_000, "more values than the 262144 allowed"),
        (b'{"prompt": "a", "x": ' + b"[" * 200 + b"]" * 200 + b"}", "nested more than 100 levels"),
        (b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}", ""),
        (b'{"prompt": "a", "temperature": 1e999}', ""),
        (b"[1, 2]", "valid dictionary"),
        (b'"text"', "valid dictionary"),
        (b"null", "needs a JSON object as its body"),
    ],
    ids=range(13),
)
def test_bodies_are_strict_json(server: Live, content: bytes, message: str) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
        response = server.http.post(path, content=content, headers=JSON)
        assert response.status_code == 400, (path, response.text)
        assert message in response.json()["error"]["message"] or path != "/v1/completions"


def test_a_body_of_another_type_is_a_400(server: Live) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        headers = {} if kind is None else {"Content-Type": kind}
        response = server.http.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)
        assert response.status_code == 400, kind
        assert "Content-Type: application/json" in response.json()["error"]["message"]


def test_values_are_counted_wherever_pieces_end() -> None:
    chance = random.Random(0)
    texts = ['"', "\\", '\\"', ",[:{", "a" * 997]
    for _ in range(20):
        text = "".join(chance.choice(texts) for _ in range(PIECE // 200))
        value = [text, {text: [1, {}, text]}, text[: chance.randrange(PIECE)], [[], text]]
        assert json_values(orjson.dumps(value)) == counted(value)


def counted(value: Any) -> int:
    """The same, from what was parsed."""
    if isinstance(value, dict):
        return HEAVY * (1 + len(value)) + max(0, len(value) - 1) + sum(map(counted, value.values()))
    if isinstance(value, list):
        return HEAVY + max(0, len(value) - 1) + sum(map(counted, value))
    return 0


@pytest.mark.parametrize(
    ("field", "values"),
    [("prompt", [[1]] * 40_000), ("x", [{}] * 40_000), ("logit_bias", {str(key): 1 for key in range(40_000)})],
    ids=["lists", "objects", "keys"],
)
def test_large_bodies_have_a_bounded_number_of_values(server: Live, field: str, values: Any) -> None:
    response = server.post("/v1/completions", **{**BODY, field: values})
    assert response.status_code == 400
    assert "more values than the 262144 allowed (--max-json-values)" in response.json()["error"]["message"]
    with live(max_json_values=0) as unbounded:
        response = unbounded.post("/v1/completions", **{**BODY, field: values})
        assert "--max-json-values" not in response.text


@pytest.mark.parametrize("wrong", [[1] * 9 + ["a"], ["a"] * 9 + [1, 2, 3], [[1], ["a"], ["b"]]])
def test_a_list_is_read_as_far_as_its_first_wrong_item(wrong: list[Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        CompletionRequest(prompt=wrong)  # type: ignore[arg-type]
    branches = 4
    assert len(refused.value.errors()) == branches


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_client_that_leaves_while_it_sends_is_no_incident(
    server: Live, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    for path in (b"/v1/completions", b"/tokenize"):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\r\n"
            connection.sendall(head % path + b'{"prompt": "' + b"x" * size)
            while not server.service.num_active:
                time.sleep(0.01)
        while server.service.num_active:
            time.sleep(0.01)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/files", "/v1/audio/transcriptions"])
def test_a_client_that_leaves_while_it_sends_is_no_error(
    server: Live, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of JSON, and of a form, whose body the route reads itself."""
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000\r\n\r\nx".encode())
        time.sleep(0.05)
    with caplog.at_level(logging.ERROR, "jaxengine"):
        time.sleep(0.2)
        assert server.http.get("/health").status_code == 200
    assert not caplog.records
