"""Errors name fields as their endpoint calls them."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.errors import ContextLengthError, RequestError
from jaxengine.server.http.names import called
from tests.server.rig import Live

NAMES = {"max_tokens": "max_output_tokens", "messages": "input"}


@pytest.mark.parametrize(
    ("name", "message", "told"),
    [
        ("max_tokens", "max_tokens must be at least 1", "max_output_tokens must be at least 1"),
        ("messages", "the messages are too many", "the messages are too many"),
        ("stop", "stop must hold texts", "stop must hold texts"),
        (None, "max_tokens and more", "max_tokens and more"),
    ],
)
def test_an_error_is_told_by_the_name_of_the_field(name: str | None, message: str, told: str) -> None:
    with pytest.raises(ContextLengthError) as caught, called(NAMES):
        raise ContextLengthError(message, param=name)
    assert (str(caught.value), caught.value.param) == (told, NAMES.get(name or "", name))


def test_what_names_no_field_stays() -> None:
    with pytest.raises(RequestError, match="oops"), called(NAMES):
        raise RequestError("oops")


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 0}, "max_output_tokens"),
        ("/v1/responses", {"input": "Hi", "top_logprobs": 99}, "top_logprobs"),
        ("/v1/chat/completions", {"max_completion_tokens": 0}, "max_completion_tokens"),
        ("/v1/chat/completions", {"max_tokens": 0}, "max_tokens"),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
        ("/v1/messages", {"max_tokens": 1, "stop_sequences": [""]}, "stop_sequences"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 0}, "output_dimension"),
        ("/v2/embed", {"texts": ["a"], "max_tokens": -3}, "max_tokens"),
    ],
)
def test_every_endpoint_calls_its_fields_by_its_names(server: Live, path: str, body: dict[str, Any], name: str) -> None:
    if "texts" not in body and "input" not in body:
        body = {**body, "messages": [{"role": "user", "content": "Hi"}]}
    error = server.post(path, **body)
    assert error.status_code == 400
    assert error.json()["error"]["message"].startswith(f"{name} "[:-1]), error.text
    assert error.json()["error"].get("param", name) == name
