"""Tools and reasoning over HTTP: what is read from a model's text, what is forced, what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from jaxengine.front.parsers.tools import TOOL_FORMATS
from tests.fronts import TOKENIZER, make_engine
from tests.quick import slow_but
from tests.server.rig import Live, live
from tests.server.scripted import MESSAGES, NOW, TOOLS, WEATHER, ScriptedRunner, calls, message, streamed

CALL = '<tool_call>{"name": "now"}</tool_call>'
TWO = f'Well.\n{CALL}\n<tool_call>{{"name": "get_weather", "arguments": {{"city": "Oslo"}}}}</tool_call>'


@pytest.fixture(scope="module")
def tooled() -> Iterator[Live]:
    options = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True, "reasoning_parser": "qwen3"}
    with live(make_engine(runner=ScriptedRunner, max_len=400), **options) as server:
        yield server


@pytest.mark.parametrize(
    ("text", "body", "content", "found", "finish"),
    [
        (CALL, {}, None, [("now", {})], "tool_calls"),
        (TWO, {}, "Well.", [("now", {}), ("get_weather", {"city": "Oslo"})], "tool_calls"),
        (TWO, {"parallel_tool_calls": False}, "Well.", [("now", {})], "tool_calls"),
        (TWO, {"tool_choice": "auto"}, "Well.", [("now", {}), ("get_weather", {"city": "Oslo"})], "tool_calls"),
        (CALL, {"tool_choice": "none"}, CALL, [], "stop"),
        (CALL, {"tools": None}, CALL, [], "stop"),
        ("<tool_call>{oops", {}, "<tool_call>{oops", [], "stop"),
        ("Hello 🏔", {}, "Hello 🏔", [], "stop"),
        (TWO, {"max_tokens": 20}, TWO, [], "length"),
    ],
)
def test_calls_are_read_from_the_text(
    tooled: Live, text: str, body: dict[str, Any], content: str | None, found: list[Any], finish: str
) -> None:
    asked = {"tools": TOOLS, **body}
    tooled.runner.write(text)
    whole, reason = message(tooled, **asked)
    if finish == "length":
        assert content is not None
        assert content.startswith(whole["content"])
    else:
        assert whole["content"] == content
    assert (calls(whole), reason) == (found, finish)
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in whole.get("tool_calls", []))
    assert ("tool_calls" in whole) == bool(found)
    tooled.runner.write(text)
    parts, reason = streamed(tooled, **asked)
    assert (parts["content"] or None, calls(parts), reason) == (whole["content"], found, finish)
    assert [call["index"] for call in parts["tool_calls"]] == list(range(len(found)))


def test_reasoning_is_told_apart_and_calls_in_it_are_none(tooled: Live) -> None:
    text = f"<think>\nShould I {CALL}?</think>\n\nYes. {CALL}"
    for read in (message, streamed):
        tooled.runner.write(text)
        found, reason = read(tooled, tools=TOOLS)
        assert found["reasoning"] == f"\nShould I {CALL}?"
        assert found["content"] == "\n\nYes."
        assert (calls(found), reason) == ([("now", {})], "tool_calls")
        tooled.runner.write(text)
        found, _ = read(tooled, tools=TOOLS, include_reasoning=False)
        assert not found["reasoning"]
    tooled.runner.write(text)
    usage = tooled.post("/v1/chat/completions", messages=MESSAGES, max_tokens=300).json()["usage"]
    expected = len(TOKENIZER.encode(f"\nShould I {CALL}?", add_special_tokens=False))
    assert usage["completion_tokens_details"] == {"reasoning_tokens": expected}


def test_a_grammar_that_gives_up_ends_its_request_alone(tooled: Live) -> None:
    """The script breaks the grammar, as a sampler never does; the matcher's own failures look the same."""
    body = {"prompt": "Hi", "max_tokens": 50, "structured_outputs": {"regex": "[0-9]{40}"}}
    tooled.runner.write("12345 oops")
    [choice] = tooled.post("/v1/completions", **body).json()["choices"]
    assert choice["finish_reason"] == "error"
    assert choice["text"].startswith("12345")
    *events, done = tooled.events("/v1/completions", **body)
    assert json.loads(events[-1])["choices"][0]["finish_reason"] == "error"
    assert done == "[DONE]"
    tooled.runner.write("")
    [choice] = tooled.post("/v1/completions", **body).json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert re.search(
        r'request_success_total\{[^}]*finished_reason="error"[^}]*\} 2\.0', tooled.http.get("/metrics").text
    )


def test_calls_and_reasoning_are_items_of_a_response(tooled: Live) -> None:
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    tooled.runner.write(f"<think>hm</think>Well. {CALL}")
    response = tooled.post("/v1/responses", input="Hi", tools=flat, max_output_tokens=200).json()
    assert response["status"] == "completed", response
    items = {item["type"]: item for item in response["output"]}
    assert list(items) == ["reasoning", "message", "function_call"]
    assert items["function_call"]["name"] == "now"
    assert items["function_call"]["arguments"] == "{}"
    assert items["message"]["content"][0]["text"] == "Well."
    tooled.runner.write("")
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "name": "answer", "schema": schema}}
    response = tooled.post("/v1/responses", input="Hi", text=form, max_output_tokens=200, temperature=0).json()
    texts = [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]
    assert all(set(json.loads(text)) == {"ok"} for text in texts)
    assert texts or response["status"] == "incomplete"  # it may reason to the end


@pytest.mark.parametrize(
    "parser",
    slow_but(TOOL_FORMATS, {"hermes", "openai", "pythonic"}),
)
def test_required_and_named_calls_are_forced(parser: str) -> None:
    with live(
        make_engine(runner=ScriptedRunner, max_len=400), tool_call_parser=parser, enable_auto_tool_choice=True
    ) as server:
        named = {"type": "function", "function": {"name": "get_weather"}}
        nothing = {"type": "object", "properties": {}, "additionalProperties": False}
        tools = [
            WEATHER,
            {"type": "function", "function": {"name": "now", "parameters": nothing}},
        ]  # no endless arguments
        for seed in range(3):
            options = {"tools": tools, "max_tokens": 300, "temperature": 1, "seed": seed, "parallel_tool_calls": False}
            found, reason = message(server, **options, tool_choice=named)
            [(name, arguments)] = calls(found)
            assert (name, reason, found["content"]) == ("get_weather", "stop", None)
            assert arguments["city"] in ("Rome", "Oslo")
            assert arguments.keys() <= {"city", "days"}
            found, reason = message(server, **options, tool_choice="required")
            assert (len(calls(found)), reason) == (1, "tool_calls")
            # a form of text says nothing of an answer that is a call
            form = {"response_format": {"type": "json_object"}}
            assert len(calls(message(server, **options, **form, tool_choice="required")[0])) == 1


def test_a_forced_call_that_is_cut_is_told_as_far_as_it_came(tooled: Live) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"'
    for most, begun in ((4, False), (len(TOKENIZER.encode(text, add_special_tokens=False)), True)):
        for read in (message, streamed):
            tooled.runner.write(f"{text}}}}}\n</tool_call>")
            found, reason = read(tooled, tools=TOOLS, tool_choice=named, max_tokens=most)
            told = [call["function"] for call in found.get("tool_calls") or ()]
            assert told == ([{"name": "get_weather", "arguments": '{"city": "Oslo"'}] if begun else [])
            assert (found["content"] or "", reason) == ("", "length")
    tooled.runner.write("")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"tools": []}, "tools must not be empty"),
        ({"tools": [{"type": "web"}]}, r"tools[0] must be"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, r"tools[0].function.name must be 1 to 128"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]},
            "parameters must be a JSON schema",
        ),
        ({"tools": [NOW, NOW]}, "more than one function 'now'"),
        ({"tool_choice": "auto"}, "When using `tool_choice`, `tools` must be set"),
        (
            {"tools": TOOLS, "tool_choice": "always"},
            "tool_choice must be none, auto, required or a function, got 'always'",
        ),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "g"}}}, "tool_choice names 'g', which is not in tools"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "send no others), got {'type': 'allowed_tools'",
        ),
        (
            {"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"},
            "tool_choice 'required' and a structured answer exclude each other",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tooled: Live, body: dict[str, Any], text: str) -> None:
    response = tooled.post("/v1/chat/completions", messages=MESSAGES, **body)
    assert response.status_code == 400
    assert text in response.json()["error"]["message"]


def test_without_a_parser_only_none_is_allowed(server: Live) -> None:
    for choice, text in {"auto": '"auto" tool choice requires', "required": "requires --tool-call-parser"}.items():
        response = server.post("/v1/chat/completions", messages=MESSAGES, tools=TOOLS, tool_choice=choice)
        assert response.status_code == 400
        assert text in response.json()["error"]["message"]
    assert server.post("/v1/chat/completions", messages=MESSAGES, tools=TOOLS, tool_choice="none").status_code == 200


def test_a_structured_answer_beside_tools_leaves_the_choice_to_the_model(tooled: Live) -> None:
    seen = set()
    tooled.runner.write("")
    for seed in range(12):
        found, _ = message(
            tooled, tools=[WEATHER], structured_outputs={"choice": ["yes", "no"]}, temperature=1, seed=seed
        )
        seen.add("call" if calls(found) else found["content"])
    assert "call" in seen
    assert seen <= {"call", "yes", "no", ""}  # nothing: it reasoned to the end, as this server lets it
    assert seen & {"yes", "no"}


def test_messages_of_gpt_oss_are_reasoning_content_and_calls() -> None:
    """Harmony: thoughts, a preamble and a call have channels; the same whole, streamed and as items of a response."""
    text = (
        "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Oslo"}<|call|>'
    )
    options = {"tool_call_parser": "openai", "enable_auto_tool_choice": True, "reasoning_parser": "openai_gptoss"}
    with live(make_engine(runner=ScriptedRunner, max_len=400), **options) as server:
        for read in (message, streamed):
            server.runner.write(text)
            found, reason = read(server, tools=TOOLS)
            assert (found["reasoning"], found["content"]) == ("So.", "I look.")
            assert (calls(found), reason) == ([("get_weather", {"city": "Oslo"})], "tool_calls")
        server.runner.write(text)
        tool = {"type": "function", **WEATHER["function"]}
        response = server.post("/v1/responses", input="Hi", tools=[tool], max_output_tokens=300)
        assert response.status_code == 200, response.text
        items = response.json()["output"]
        assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
        assert json.loads(items[-1]["arguments"]) == {"city": "Oslo"}


@pytest.mark.parametrize("parser", slow_but(["hermes", "mistral", "qwen3_coder", "qwen3_xml"], {"hermes", "qwen3_xml"}))
def test_strict_functions_hold_calls_to_their_schema(parser: str) -> None:
    """A schema that cannot be held to is refused."""
    with live(
        make_engine(runner=ScriptedRunner, max_len=400), tool_call_parser=parser, enable_auto_tool_choice=True
    ) as server:
        schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
        for strict in (True, False):
            tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": strict}}
            response = server.post("/v1/chat/completions", messages=MESSAGES, tools=[tool], max_tokens=5)
            assert response.status_code == (400 if strict else 200)
            assert ("uniqueItems" in response.text) == strict


def test_an_answer_is_constrained_behind_its_reasoning(tooled: Live) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    tooled.runner.write("<think>\nhm</think>\n\n" + '{"ok": true}')
    found, reason = message(tooled, response_format=form)
    assert (found["reasoning"], json.loads(found["content"]), reason) == ("\nhm", {"ok": True}, "stop")
