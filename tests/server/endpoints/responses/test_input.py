"""Input items as chat messages."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.server.endpoints.responses.input import to_messages, to_response_format, to_tool_choice, to_tools

PARTS = [{"type": "input_text", "text": "Hi"}]


def test_text_is_a_message_of_the_user() -> None:
    assert to_messages("Hi") == [{"role": "user", "content": "Hi"}]


def test_messages_with_and_without_a_type() -> None:
    given = [{"role": "developer", "content": "Be brief"}, {"type": "message", "role": "user", "content": PARTS}]
    assert to_messages(given) == [{"role": "system", "content": "Be brief"}, {"role": "user", "content": PARTS}]


def test_reasoning_calls_and_answers_of_one_turn_are_one_message() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}", "id": "fc_1"}
    messages = to_messages(
        [
            {"role": "user", "content": "Look"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking"}]},
            call,
            call | {"call_id": "c2"},
            {"type": "function_call_output", "call_id": "c1", "output": "a tree"},
            call | {"call_id": "c3"},
        ]
    )
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["reasoning_content"] == "hm"
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["c1", "c2"]
    assert messages[2] == {"role": "tool", "tool_call_id": "c1", "content": "a tree"}


def test_two_answers_in_a_row_stay_two() -> None:
    assert len(to_messages([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}])) == 2


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "item_reference", "id": "x"}, "item_reference"),
        ({"type": "computer_call"}, "computer_call"),
        ({"content": "Hi"}, "role"),
        ({"type": "function_call", "name": "look"}, "arguments"),
        ({"type": "function_call_output", "output": ""}, "call_id"),
        ({"type": 3}, "3"),
    ],
)
def test_items_that_are_not_understood(item: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError, match=param) as caught:
        to_messages([item])
    assert caught.value.param == "input"


def test_function_tools() -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}
    assert to_tools([tool]) == [
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": True}}
    ]
    assert to_tools([]) is None
    with pytest.raises(UnsupportedError, match="web_search"):
        to_tools([{"type": "web_search"}])


def test_tool_choice() -> None:
    for choice in ("required", "none", None):
        assert [to_tool_choice(choice, tools=tools) for tools in (True, False)] == [choice, choice]
    assert [to_tool_choice("auto", tools=tools) for tools in (True, False)] == ["auto", None]
    named = to_tool_choice({"type": "function", "name": "look"}, tools=True)
    assert named == {"type": "function", "function": {"name": "look"}}
    with pytest.raises(UnsupportedError, match="file_search"):
        to_tool_choice({"type": "file_search"}, tools=True)


def test_text_formats() -> None:
    assert to_response_format(None) is None
    assert to_response_format({"type": "text"}) is None
    assert to_response_format({"type": "json_object"}) == {"type": "json_object"}
    assert to_response_format({"type": "json_schema", "name": "n", "schema": {"a": 1}}) == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"a": 1}},
    }
