"""Items and their events: in order, each opened, grown and closed once, and equal to the sum of their deltas."""

from __future__ import annotations

from itertools import groupby

from jaxengine.server.conversation.message import ToolCall
from jaxengine.server.endpoints.responses.items import Event, ItemWriter


def types(events: list[Event]) -> list[str]:
    """Their types, repetitions left out."""
    return [kind for kind, _ in groupby(event["type"].removeprefix("response.") for event in events)]


def test_a_message() -> None:
    writer = ItemWriter()
    events = writer.content("Hello", [{"token": "Hello"}]) + writer.content(" you", []) + writer.close()
    assert types(events) == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    [item] = writer.items
    part = {"type": "output_text", "text": "Hello you", "annotations": [], "logprobs": [{"token": "Hello"}]}
    assert item == {
        "type": "message",
        "id": item["id"],
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    assert item["id"].startswith("msg_")
    assert events[0]["item"] == item | {"status": "in_progress", "content": []}
    assert events[1]["part"] == part | {"text": "", "logprobs": []}
    assert "".join(event["delta"] for event in events if event["type"].endswith("delta")) == "Hello you"
    assert {event.get("item_id", item["id"]) for event in events} == {item["id"]}
    assert {event["output_index"] for event in events} == {0}


def test_reasoning_then_an_answer_then_calls() -> None:
    writer = ItemWriter()
    events = [
        *writer.reasoning("hm"),
        *writer.reasoning("m"),
        *writer.content("Let me look.", []),
        *writer.call(ToolCall(0, "call_1", "look", '{"a":1}')),
        *writer.call(ToolCall(1, "call_2", "now", "{}")),
        *writer.close(),
    ]
    assert [item["type"] for item in writer.items] == ["reasoning", "message", "function_call", "function_call"]
    assert writer.items[0]["content"] == [{"type": "reasoning_text", "text": "hmm"}]
    assert [(item["name"], item["call_id"], item["arguments"]) for item in writer.items[2:]] == [
        ("look", "call_1", '{"a":1}'),
        ("now", "call_2", "{}"),
    ]
    assert types(events) == [
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == writer.items
    indexes = [event["output_index"] for event in events]
    assert indexes == sorted(indexes)


def test_a_call_without_arguments_yet_is_a_call() -> None:
    writer = ItemWriter()
    events = writer.call(ToolCall(0, "call_1", "now", "")) + writer.close()
    assert writer.items[0]["arguments"] == ""
    assert types(events) == ["output_item.added", "function_call_arguments.done", "output_item.done"]


def test_what_was_cut_short_is_incomplete() -> None:
    writer = ItemWriter()
    writer.content("Once upon", [])
    writer.close(complete=False)
    assert writer.items[0]["status"] == "incomplete"


def test_nothing_said_is_nothing_told() -> None:
    writer = ItemWriter()
    assert writer.close() == []
    assert writer.items == []
