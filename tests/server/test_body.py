"""Request bodies: bounded in size and depth, strict JSON, of the right type."""

from __future__ import annotations

import pytest

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


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "needs a JSON object as its body"),
        (b"{", "not valid JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "not valid JSON"),
        (b'{"prompt": "\\ud800"}', "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b'{"prompt": ' + b"[" * 100_000, "not valid JSON"),
        (b'{"prompt": "a", "x": ' + b"[" * 200 + b"]" * 200 + b"}", "nested more than 100 levels"),
        (b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}", ""),
        (b'{"prompt": "a", "temperature": 1e999}', ""),
        (b"[1, 2]", "valid dictionary"),
        (b'"text"', "valid dictionary"),
        (b"null", "needs a JSON object as its body"),
    ],
    ids=range(12),
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
