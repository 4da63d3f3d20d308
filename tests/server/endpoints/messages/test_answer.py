"""`/v1/messages`: blocks whole and streamed, tools, reasoning, counts, and errors in Anthropic's form."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.fakes import GatedRunner
from tests.fronts import TOKENIZER, make_engine
from tests.robustness.loopback import until
from tests.server.rig import Live, live
from tests.server.scripted import ScriptedRunner

HI = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "name": "get_weather",
    "description": "of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'

FORCED = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    options: dict[str, Any] = {
        "tool_call_parser": "hermes",
        "enable_auto_tool_choice": True,
        "reasoning_parser": "qwen3",
        "enable_prompt_tokens_details": True,
    }
    with live(make_engine(runner=ScriptedRunner, max_len=500), **options) as server:
        yield server


def whole(server: Live, text: str, **body: Any) -> dict[str, Any]:
    server.settle()
    server.runner.write(text)
    response = server.post("/v1/messages", **{"messages": HI, "max_tokens": 300, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def streamed(server: Live, text: str, **body: Any) -> list[dict[str, Any]]:
    server.settle()
    if text:
        server.runner.write(text)
    with server.http.stream(
        "POST", "/v1/messages", json={"messages": HI, "max_tokens": 300, "stream": True, **body}
    ) as response:
        assert response.status_code == 200, response.read()
        lines = [line for line in response.iter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [event["type"] for event in events] == names
    return events


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream."""
    first, *middle, ending, last = events
    assert first["type"] == "message_start"
    assert first["message"]["stop_reason"] is None
    assert (ending["type"], last) == ("message_delta", {"type": "message_stop"})
    blocks: list[dict[str, Any]] = []
    closed = True
    for event in middle:
        if event["type"] == "content_block_start":
            assert closed
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
            closed, arguments = False, ""
            continue
        assert not closed
        assert event["index"] == len(blocks) - 1
        if event["type"] == "content_block_stop":
            closed = True
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = json.loads(arguments or "{}")
            continue
        delta = event["delta"]
        key = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[delta["type"]]
        if key == "partial_json":
            arguments += delta[key]
        else:
            blocks[-1][key] += delta[key]
    assert closed
    return {**first["message"], "content": blocks, **ending["delta"], "usage": ending["usage"]}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]
    usage = {key: value for key, value in message["usage"].items() if key == "output_tokens"}
    return {**message, "id": "", "content": content, "usage": usage}


TEXT = {"type": "text", "text": "Well."}
USE = {"type": "tool_use", "name": "get_weather", "input": {"city": "Oslo"}}


@pytest.mark.parametrize(
    ("text", "body", "content", "reason", "sequence"),
    [
        ("Well.", {}, [TEXT], "end_turn", None),
        ("Well. Yes", {"stop_sequences": [" Y"]}, [TEXT], "stop_sequence", " Y"),
        ("Well." * 9, {"max_tokens": 3}, None, "max_tokens", None),
        (
            "<think>So</think>Well.",
            {},
            [{"type": "thinking", "thinking": "So", "signature": ""}, TEXT],
            "end_turn",
            None,
        ),
        ("<think>So</think>Well.", {"thinking": {"type": "disabled"}}, [TEXT], "end_turn", None),
        (CALL, {"tools": [WEATHER]}, [USE], "tool_use", None),
        (f"Well.{CALL}", {"tools": [WEATHER], "tool_choice": {"type": "auto"}}, [TEXT, USE], "tool_use", None),
        (CALL + CALL, {"tools": [WEATHER]}, [USE, USE], "tool_use", None),
        (
            CALL + CALL,
            {"tools": [WEATHER], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            [USE],
            "tool_use",
            None,
        ),
        (FORCED, {"tools": [WEATHER], "tool_choice": {"type": "any"}}, [USE], "tool_use", None),
        (
            FORCED,
            {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "get_weather"}},
            [USE],
            "tool_use",
            None,
        ),
        (
            CALL,
            {"tools": [WEATHER], "tool_choice": {"type": "none"}},
            [{"type": "text", "text": CALL}],
            "end_turn",
            None,
        ),
    ],
)
def test_a_message_is_the_same_whole_and_streamed(
    server: Live, text: str, body: dict[str, Any], content: Any, reason: str, sequence: str | None
) -> None:
    answer = whole(server, text, **body)
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "tiny")
    assert answer["id"].startswith("msg_")
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    if content is not None:
        assert without_ids(answer)["content"] == content
    again = put_together(streamed(server, text, **body))
    assert without_ids(again) == without_ids(answer)


def test_usage_tells_cached_tokens_apart(server: Live) -> None:
    messages = [{"role": "user", "content": "Once upon a time there was a cat"}]
    first, second = (whole(server, "Well.", messages=messages)["usage"] for _ in range(2))
    assert second["cache_read_input_tokens"] > 0
    assert second["cache_creation_input_tokens"] == 0
    total = first["input_tokens"] + first["cache_read_input_tokens"]
    assert second["input_tokens"] + second["cache_read_input_tokens"] == total
    assert total == server.post("/v1/messages/count_tokens", messages=messages).json()["input_tokens"]
    [start, *_] = streamed(server, "Well.", messages=messages)
    assert start["message"]["usage"]["output_tokens"] == 0
    assert start["message"]["usage"]["input_tokens"] > 0


def test_a_conversation_is_read_as_a_chat(server: Live) -> None:
    """Blocks, results of tools and the system's words come to what a chat request says in its own."""
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "So", "signature": "x"},
                {"type": "redacted_thinking", "data": "?"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    theirs = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "Let me see."},
        {"role": "tool", "content": "rain"},
        {"role": "user", "content": "And?"},
    ]
    expected = server.post("/tokenize", messages=theirs).json()
    for system in ("Be brief.", [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]):
        counted = server.post("/v1/messages/count_tokens", messages=messages, system=system, tools=[WEATHER]).json()
        assert counted == {"input_tokens": expected["count"]}
    assert TOKENIZER.decode(expected["tokens"]).startswith("<system>Be brief.")


def test_a_format_holds_the_answer_to_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    with live(make_engine(max_len=500)) as server:
        body = {
            "messages": HI,
            "max_tokens": 100,
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
        }
        [block] = server.post("/v1/messages", **body).json()["content"]
    assert json.loads(block["text"])["a"] in (1, 2)


def test_other_sampling_fields_work_and_what_is_not_built_is_refused() -> None:
    ids = TOKENIZER.encode("ab", add_special_tokens=False)
    body = {"messages": HI, "max_tokens": 20, "ignore_eos": True, "allowed_token_ids": ids}
    with live(make_engine()) as server:
        [block] = server.post("/v1/messages", **body).json()["content"]
        assert set(block["text"]) <= set("ab")
        assert server.post("/v1/messages", **body, n=2).status_code == 400
        assert server.post("/v1/messages", **body, context_management={"edits": [1]}).status_code == 400


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, r"messages[0].role must be user"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages[0].content must be"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "needs text, a text, got None"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "an image whose source must be",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": 3}]}]}, "needs name, a text"),
        ({"system": [{"type": "image"}]}, "system has a block of type 'image'"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools run in the client"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "name must be"),
        ({"tools": [WEATHER], "tool_choice": {"type": "some"}}, "tool_choice.type must be"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "not in tools"),
        ({"tool_choice": {"type": "any"}}, "`tools` must be set"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type must be"),
        ({"thinking": {"type": "deep"}}, "thinking.type must be"),
        ({"mcp_servers": [{"type": "url", "url": "http://a.invalid", "name": "a"}]}, "mcp_servers is not supported"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format must be"),
        ({"temperature": 9.0}, "temperature must be"),
        ({"stop_sequences": [""]}, "stop_sequences must hold non-empty"),
        ({"messages": [{"role": "user", "content": "a" * 5000}]}, "maximum context length"),
    ],
)
def test_errors_have_anthropics_form(server: Live, body: dict[str, Any], message: str) -> None:
    response = server.post("/v1/messages", **{"messages": HI, "max_tokens": 5, **body})
    assert response.status_code == 400, response.text
    error = response.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert message in error["error"]["message"]


def test_other_errors_too(server: Live) -> None:
    missing = server.post("/v1/messages", model="claude", messages=HI, max_tokens=5)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    broken = server.http.post("/v1/messages", content=b"{")
    assert (broken.status_code, broken.json()["type"]) == (400, "error")


def test_an_error_within_a_stream_is_an_event() -> None:
    with live(make_engine(runner=GatedRunner), request_timeout=0.2) as server:
        [error] = [event for event in streamed(server, "", max_tokens=5) if event["type"] == "error"]
    assert error["error"]["type"] == "timeout_error"
    assert "longest that this server allows" in error["error"]["message"]


def test_a_message_that_a_pause_aborted_ends_in_an_error() -> None:
    with live(make_engine(runner=GatedRunner), server_dev_mode=True) as server, ThreadPoolExecutor(2) as pool:
        body = {"messages": HI, "max_tokens": 50, "ignore_eos": True}
        answer = pool.submit(server.post, "/v1/messages", **body)
        told = pool.submit(lambda: server.events("/v1/messages", **body))
        until(lambda: server.service.engine.num_open == 2, "both run")
        server.runner.allow(3)
        pausing = threading.Thread(target=lambda: server.http.post("/pause"))
        pausing.start()
        channel: Any = server.engine.front.channel
        until(lambda: bool(channel._messages.qsize()) or not pausing.is_alive(), "it was asked for, or done at once")
        server.runner.open()
        pausing.join()
        for error in (answer.result().json(), json.loads(told.result()[-1])):
            assert (error["type"], error["error"]["type"]) == ("error", "overloaded_error")
            assert "paused" in error["error"]["message"]
        assert answer.result().status_code == 503


def test_a_client_that_leaves_a_stream_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with live(make_engine(runner=GatedRunner)) as server:
        body = {"messages": HI, "max_tokens": 5, "stream": True}
        with server.http.stream("POST", "/v1/messages", json=body) as response:
            assert response.status_code == 200
        until(lambda: not server.service.engine.num_open, "it has gone")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
