"""Answers against OpenAI's own description of its API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.server.rig import Live

MESSAGES = [{"role": "user", "content": "Hi"}]
GREEDY = {"temperature": 0, "max_tokens": 8}
MESSAGE_NULLS = ("annotations", "audio", "function_call")
CHUNK_NULLS = ("logprobs", "finish_reason")
"""What vLLM, and OpenAI itself, send as null, and OpenAI's description knows only as absent or full."""


class Description:
    """OpenAI's schemas by name."""

    def __init__(self, path: Path) -> None:
        self._document = json.loads(path.read_text())

    def check(self, name: str, answer: Any) -> None:
        """Fail unless `answer` is one of `name`."""
        schema = {"$ref": f"#/components/schemas/{name}", "components": self._document["components"]}
        errors = list(jsonschema.Draft202012Validator(schema).iter_errors(answer))
        assert not errors, "\n".join(f"{list(error.path)}: {error.message[:200]}" for error in errors)


@pytest.fixture(scope="module")
def openai(shared: Path) -> Iterator[Description]:
    return Description(shared / "openapi" / "openapi_subset.json")  # type: ignore[return-value]


def filled(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without those nulls; a chunk that is not the last gets the finish reason that is required."""
    for choice in answer["choices"]:
        holder, names = (choice["message"], MESSAGE_NULLS) if "message" in choice else (choice, CHUNK_NULLS)
        for name in names:
            if holder[name] is None:
                del holder[name]
        choice.setdefault("finish_reason", "stop")
        if choice.get("logprobs"):
            choice["logprobs"]["refusal"] = choice["logprobs"]["refusal"] or []
    return answer


def test_completions(server: Live, openai: Description) -> None:
    for extra in ({}, {"logprobs": 2}, {"n": 2, "temperature": 1.0}):
        body = {"prompt": "Tom", **GREEDY, **extra}
        openai.check("CreateCompletionResponse", server.post("/v1/completions", **body).json())


def test_chat(server: Live, openai: Description) -> None:
    for extra in ({}, {"logprobs": True, "top_logprobs": 2}, {"n": 2, "temperature": 1.0}):
        body = {"messages": MESSAGES, **GREEDY, **extra}
        openai.check("CreateChatCompletionResponse", filled(server.post("/v1/chat/completions", **body).json()))
        *events, _ = server.events("/v1/chat/completions", **body, stream_options={"include_usage": True})
        for event in events:
            openai.check("CreateChatCompletionStreamResponse", filled(json.loads(event)))


def test_models_and_errors(server: Live, openai: Description) -> None:
    openai.check("ListModelsResponse", server.http.get("/v1/models").json())
    error = server.post("/v1/completions", prompt="x", model="other").json()
    error["error"]["code"] = str(error["error"]["code"])  # vLLM's codes are numbers
    openai.check("ErrorResponse", error)


def test_embeddings(server: Live, openai: Description) -> None:
    for given in ("Tom", ["Tom", "Mary"], [5, 6], [[5], [6, 7]]):
        openai.check("CreateEmbeddingResponse", server.post("/v1/embeddings", input=given).json())
