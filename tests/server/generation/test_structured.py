"""Structured answers over HTTP, under OpenAI's names, vLLM's, and vLLM's older ones."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

import pytest

from tests.server.rig import Live
from tests.server.scripted import MESSAGES, streamed

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "yes"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "pair", "strict": True, "schema": SCHEMA}}


def text_of(server: Live, **body: Any) -> str:
    response = server.post("/v1/completions", **{"prompt": "Hi", "max_tokens": 70, "temperature": 1, "seed": 3, **body})
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return choice["text"]


def is_pair(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"a", "b"} and 0 <= value["a"] <= 99 and value["b"] in ("x", "yes")


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": JSON_SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "disable_any_whitespace": True}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA), "guided_whitespace_pattern": " ?"},
    ],
)
def test_a_schema_under_all_its_names(server: Live, body: dict[str, Any]) -> None:
    assert is_pair(text_of(server, **body))
    found, reason = streamed(server, temperature=1, seed=3, max_tokens=70, **body)
    assert is_pair(found["content"])
    assert reason == "stop"


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ({"structured_outputs": {"regex": "[a-c]{3}-[0-9]"}}, "[a-c]{3}-[0-9]"),
        ({"guided_regex": "x{2,4}"}, "x{2,4}"),
        ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
        ({"guided_choice": ["red", "green"]}, "red|green"),
        ({"structured_outputs": {"grammar": 'start: "a" | "(" start ")"'}}, r"\(*a\)*"),
        ({"guided_grammar": 'root ::= "a" | "(" root ")"'}, r"\(*a\)*"),
        ({"response_format": {"type": "text"}, "guided_choice": ["red"]}, "red"),
    ],
)
def test_other_forms(server: Live, body: dict[str, Any], pattern: str) -> None:
    assert re.fullmatch(pattern, text_of(server, **body))


def test_n_and_logprobs(server: Live) -> None:
    response = server.post(
        "/v1/chat/completions",
        messages=MESSAGES,
        response_format=JSON_SCHEMA,
        n=4,
        temperature=1,
        seed=1,
        max_tokens=80,
        logprobs=True,
        top_logprobs=2,
    ).json()
    assert len(response["choices"]) == 4
    for choice in response["choices"]:
        assert is_pair(choice["message"]["content"])
        assert len(choice["logprobs"]["content"]) >= 5


def test_what_is_cut_says_so(server: Live) -> None:
    body = {"prompt": "Hi", "max_tokens": 3, "guided_regex": "[a-z]{40}"}
    [choice] = server.post("/v1/completions", **body).json()["choices"]
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_*", "exactly one"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "response_format", "exclude each other"),
        ({"response_format": {"type": "xml"}}, "response_format", "must be text, json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "needs json_schema.schema"),
        ({"structured_outputs": {"jsn": "{}"}}, "structured_outputs", "Did you mean 'json'?"),
        (
            {"structured_outputs": {"regex": "a", "thinking": ["a", "b", True]}},
            "structured_outputs",
            "unknown structured output option",
        ),
        ({"structured_outputs": {}, "guided_json": {"type": "array", "uniqueItems": True}}, None, "uniqueItems"),
        ({"guided_json": {"type": "string", "minLength": 5, "maxLength": 2}}, None, "minLength (5) is greater"),
        ({"guided_json": {"$ref": "#"}}, None, "it matches nothing"),
        ({"guided_json": {"enum": []}}, None, "Unsatisfiable"),
        ({"guided_json": {"$ref": "http://127.0.0.1:9/schema"}}, None, "cannot be used"),
        ({"guided_json": "no JSON"}, None, "not valid JSON"),
        ({"guided_regex": "("}, None, "unclosed group"),
        ({"guided_regex": "a" * 200_000}, None, "at most 131072 are allowed"),
        ({"guided_regex": "\ud800"}, None, ""),
        ({"guided_grammar": "start: )"}, None, "cannot be used"),
        ({"guided_grammar": "start: R0\n" + "\n".join(f"R{i}: R{i + 1}" for i in range(7000))}, None, "cannot be used"),
        ({"guided_json": json.loads('{"not":' * 90 + "{}" + "}" * 90)}, None, ""),
    ],
)
def test_what_cannot_be_is_a_400_that_says_why(
    server: Live, body: dict[str, Any], param: str | None, text: str
) -> None:
    content = json.dumps({"prompt": "Hi", **body})
    response = server.http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert text in error["message"]
    if param is not None:
        assert error["param"] == param


def test_a_slow_grammar_holds_up_nobody_else(server: Live) -> None:
    """Compiling it takes until the limit; meanwhile others are answered, and grammars that are known as well."""
    slow = {"type": "string", "allOf": [{"pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(10, 40)]}
    text_of(server, guided_choice=["known"])

    async def run() -> float:
        loop = asyncio.get_running_loop()
        waiting = loop.run_in_executor(None, lambda: server.post("/v1/completions", prompt="Hi", guided_json=slow))
        await asyncio.sleep(0.3)
        began = time.monotonic()
        for _ in range(3):
            await loop.run_in_executor(None, lambda: text_of(server, guided_choice=["known"]))
        assert not waiting.done(), "the slow grammar was not slow; this test shows nothing"
        others = time.monotonic() - began
        response = await waiting
        assert response.status_code == 400
        assert "takes longer than" in response.json()["error"]["message"]
        return others

    asyncio.run(run())
