"""What a body of `/v1/responses` asks: what is refused, what is noted, and what fields are called in errors."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from jaxengine.errors import UnsupportedError
from jaxengine.server.endpoints.responses.asked import check_built
from jaxengine.server.endpoints.responses.protocol import ResponsesRequest


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("truncation", "auto"),
        ("include", ["file_search_call.results"]),
    ],
)
def test_what_is_not_built_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=name) as caught:
        check_built(ResponsesRequest.model_validate({"input": "Hi", name: value}))
    assert caught.value.param == name


def test_neutral_values_pass() -> None:
    check_built(
        ResponsesRequest.model_validate(
            {"input": "Hi", "background": False, "truncation": "disabled", "include": ["reasoning.encrypted_content"]}
        )
    )


def test_what_a_part_of_a_body_asks_beside_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "jaxengine")
    given = {"input": "Hi", "reasoning": {"effort": "low", "never_heard": 1}, "text": {"nor_of": 2}}
    check_built(ResponsesRequest.model_validate(given))
    assert "['reasoning.never_heard']" in caplog.text
    assert "['text.nor_of']" in caplog.text
