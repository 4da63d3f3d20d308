"""Attacks through grammars, schemas and templates (group D): compiled aside within bounds, refused with a reason, or obeyed."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from tests.quick import slow_but
from tests.robustness.answers import assert_refused
from tests.robustness.loopback import Loopback
from tests.robustness.sockets import connection, post_bytes

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


def nested(depth: int, kind: str) -> dict[str, Any]:
    """A schema of so many levels."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = (
            {"type": "array", "items": schema} if kind == "array" else {"type": "object", "properties": {"a": schema}}
        )
    return schema


def schema(body: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": body}}}


REFUSED: dict[str, dict[str, Any]] = {
    "a regex that is none": {"structured_outputs": {"regex": "("}},
    "a regex that matches nothing": {"structured_outputs": {"regex": "a[^\\s\\S]"}},
    "a regex without end": {"structured_outputs": {"regex": "(ab|cd)" * 50_000}},
    "a regex with look-around": {"structured_outputs": {"regex": "(?=a)a"}},
    "a grammar that is none": {"structured_outputs": {"grammar": "start: ("}},
    "a grammar without a start": {"structured_outputs": {"grammar": "x: y\ny: x"}},
    "a grammar that goes round": {"structured_outputs": {"grammar": "start: start"}},
    "no choices": {"structured_outputs": {"choice": []}},
    "an empty choice": {"structured_outputs": {"choice": [""]}},
    "choices in very great number": {"structured_outputs": {"choice": [f"choice {i}" * 5 for i in range(50_000)]}},
    "two constraints": {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    "an unknown constraint": {"structured_outputs": {"magic": "x"}},
    "a schema that nothing satisfies": schema({"type": "integer", "minimum": 5, "maximum": 4}),
    "a schema of false": schema(False),
    "a schema that is text": schema("string"),
    "a reference to nowhere": schema({"$ref": "#/definitions/nowhere"}),
    "a reference to the net": schema({"$ref": "http://127.0.0.1:9/schema.json"}),
    "a reference to a file": schema({"$ref": "file:///etc/passwd"}),
    "a schema without end": schema({"enum": ["x" * 100] * 5000}),
    "a schema of null": {"response_format": {"type": "json_schema", "json_schema": None}},
    "an unknown format": {"response_format": {"type": "yaml"}},
    "a format of nothing": {"response_format": {}},
    "an older name with nonsense": {"guided_regex": "["},
    "tools that are none": {"tools": [{}], "tool_choice": "required"},
    "a tool without a name": {"tools": [{"type": "function", "function": {}}], "tool_choice": "required"},
    "a tool that is not there": {
        "tools": [{"type": "function", "function": {"name": "a", "parameters": {}}}],
        "tool_choice": {"type": "function", "function": {"name": "b"}},
    },
    "a template of one's own": {"chat_template": "{% for i in range(10**9) %}x{% endfor %}"},
    "template variables that are taken": {"chat_template_kwargs": {"messages": [], "tokenize": True}},
    "messages that are none": {"messages": []},
    "messages of nulls": {"messages": [None]},
    "a message without a role": {"messages": [{"content": "a"}]},
    "an image": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/"}}]}]
    },
}

BOUNDED: dict[str, dict[str, Any]] = {
    "a regex that backtracks elsewhere": {"structured_outputs": {"regex": "(a+)+b"}},
    "a regex with a million states": {"structured_outputs": {"regex": "[ab]*a[ab]{1,100000}"}},
    "a regex with a million repetitions of repetitions": {
        "structured_outputs": {"regex": "((a{1,1000}){1,1000}){1,1000}"}
    },
    "no constraint, by null": {"structured_outputs": {"regex": None}},
    "a million repetitions": {"structured_outputs": {"regex": "a{1,1000000}"}},
    "arrays in arrays": schema(nested(60, "array")),
    "objects in objects": schema(nested(60, "object")),
    "more objects in objects": schema(nested(300, "object")),
    "a schema that refers to itself": schema({"$ref": "#"}),
    "a tree": schema({"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}),
    "very many properties": schema(
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}}
    ),
    "very many alternatives": schema({"anyOf": [{"const": f"value {i}"} for i in range(2000)]}),
    "a pattern in a schema": schema({"type": "string", "pattern": "^(a|b|ab)*c{1,5000}$"}),
    "a long string": schema({"type": "string", "minLength": 100_000}),
    "an empty schema": schema({}),
    "white space without end": {"structured_outputs": {"json": {"type": "object"}, "whitespace_pattern": "[ \n]*"}},
}
"""May be refused or served, in good time."""


@pytest.mark.parametrize("attack", slow_but(REFUSED, list(REFUSED)[::3]))
def test_refused(attack: str, client: httpx.Client) -> None:
    response = client.post("/v1/chat/completions", content=json.dumps(CHAT | REFUSED[attack]).encode())
    assert_refused(response)


@pytest.mark.parametrize("attack", slow_but(BOUNDED, ["a long string", "an empty schema"]))
def test_bounded(attack: str, client: httpx.Client) -> None:
    response = client.post("/v1/chat/completions", content=json.dumps(CHAT | BOUNDED[attack]).encode())
    if response.status_code != 200:
        assert_refused(response)


@pytest.mark.slow
def test_a_flood_of_schemas_that_are_all_new(server: Loopback, client: httpx.Client) -> None:
    for number in range(25):
        form = schema({"type": "object", "properties": {f"p{number}": {"type": "integer"}}, "required": [f"p{number}"]})
        response = client.post("/v1/chat/completions", content=json.dumps({**CHAT, "max_tokens": 1, **form}).encode())
        assert response.status_code == 200, response.text


@pytest.mark.parametrize("stream", slow_but([False, True], {False}))
def test_a_grammar_whose_client_goes_away(stream: bool, server: Loopback, client: httpx.Client) -> None:
    body = {
        **CHAT,
        "max_tokens": 300,
        "stream": stream,
        **schema({"type": "array", "items": {"type": "integer"}, "minItems": 200}),
    }
    for number in range(5):
        with connection(server.port) as raw:
            raw.sendall(post_bytes("/v1/chat/completions", body))
            if stream:
                received = b""
                while received.count(b"data:") < 3:
                    received += (piece := raw.recv(4096))
                    assert piece, received
            else:
                time.sleep(0.02 * number)  # while it is read, compiled, waited for or obeyed
