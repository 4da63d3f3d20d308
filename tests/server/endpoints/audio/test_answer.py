"""What a stream of a transcription tells of its pieces, which may end in any order and way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from jaxengine.contract.outputs import CompletionOutput
from jaxengine.server.endpoints.audio.answer import SpeechAnswer
from jaxengine.server.endpoints.audio.protocol import SpeechRequest


class Steps:
    """Outputs as an engine's stream has them, one of a piece in each step."""

    def __init__(self, outputs: Sequence[tuple[str, CompletionOutput]]) -> None:
        self._outputs = iter([[SimpleNamespace(request_id=name, outputs=(made,))] for name, made in outputs])

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __aiter__(self) -> Steps:
        return self

    async def __anext__(self) -> Any:
        for step in self._outputs:
            return step
        raise StopAsyncIteration


def told(*outputs: tuple[str, CompletionOutput]) -> list[dict[str, Any]]:
    """The choices of the stream of a sound of two pieces, `first` and `last`."""
    service: Any = SimpleNamespace(response_id=lambda *_: "trsc-1", answered_by=lambda _: "whisper")
    nothing: Any = None
    answer = SpeechAnswer(SpeechRequest(stream=True, language="en"), b"", "transcribe", service, nothing, nothing)
    answer._pieces, answer._order = ((0, 1), (1, 2)), {"first": 0, "last": 1}
    stream: Any = Steps(outputs)

    async def read() -> list[bytes]:
        return [event async for event in answer.events(stream)]

    return [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in asyncio.run(read())]


def said(text: str, reason: str | None = None) -> CompletionOutput:
    return CompletionOutput(0, text, (1,), finish_reason=reason)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_stream_ends_with_the_piece_that_was_not_heard(reason: str) -> None:
    """Also where the last one ended as it should: behind a hole nothing is told."""
    choices = told(("last", said("the end", "stop")), ("first", said("it begins")), ("first", said("", reason)))
    assert "".join(choice["delta"]["content"] for choice in choices) == "it begins"
    assert [choice["finish_reason"] for choice in choices] == [None, reason]


def test_a_stream_ends_with_the_last_piece() -> None:
    choices = told(("last", said("the end", "stop")), ("first", said("it begins", "length")))
    assert "".join(choice["delta"]["content"] for choice in choices) == "it begins the end"
    assert [choice["finish_reason"] for choice in choices] == [None, "stop"]
