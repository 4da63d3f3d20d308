"""The answer to a request of `/v1/messages`: a chat answer, told as blocks and events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import orjson
from pydantic import ValidationError

from jaxengine.contract.request import Request as EngineRequest
from jaxengine.errors import JaxEngineError, RequestError
from jaxengine.front.output_stream import OutputStream
from jaxengine.server.endpoints.chat.answer import ChatAnswer
from jaxengine.server.endpoints.chat.protocol import ChatChunk, ChatCompletionRequest, ChunkChoice
from jaxengine.server.endpoints.messages.blocks import BlockWriter, Event
from jaxengine.server.endpoints.messages.errors import error_object
from jaxengine.server.endpoints.messages.input import chat_fields
from jaxengine.server.endpoints.messages.protocol import Conversation, Message, MessagesRequest, MessageUsage
from jaxengine.server.generation.protocol import SamplingRequest, StopReason
from jaxengine.server.http.errors import describe
from jaxengine.server.http.unknown import check_unknown
from jaxengine.server.service import Service

MESSAGE_PARAMS = {
    "stop": "stop_sequences",
    "response_format": "output_config",
    "reasoning_effort": "output_config",
    "max_completion_tokens": "max_tokens",
}
"""Names that fields of the chat request have here."""

SAMPLING_FIELDS = SamplingRequest.model_fields.keys() - MessagesRequest.model_fields.keys()
"""Those of vLLM's that Anthropic's API has no name for work here too."""

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def chat_request(body: Conversation, **fields: Any) -> ChatCompletionRequest:
    """The same conversation in the words of `/v1/chat/completions`, with further `fields`.

    Raises:
        RequestError: something in it is malformed, or not built.
    """
    extra = body.model_extra or {}
    shared = {name: value for name, value in extra.items() if name in SAMPLING_FIELDS}
    check_unknown({name: value for name, value in extra.items() if name not in SAMPLING_FIELDS})
    try:
        return ChatCompletionRequest(**{**shared, **chat_fields(body), **fields})
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        raise RequestError(f"{field}: {first['msg']}", param=MESSAGE_PARAMS.get(field, field)) from None


class MessageAnswer:
    """One body, one message."""

    def __init__(self, body: MessagesRequest, service: Service, message_id: str) -> None:
        self._body = body
        self._service = service
        self._id = message_id
        self._writer = BlockWriter()
        self._usage: Mapping[str, Any] = {}
        self._finish_reason: str | None = None
        self._stop_reason: StopReason = None

    async def prepare(self) -> list[EngineRequest]:
        """Check the body and make the engine's request."""
        # It streams, whoever reads it: the parts of a message come in their order then.
        options = {"include_usage": True, "continuous_usage_stats": True}
        try:
            self._chat = ChatAnswer(
                chat_request(self._body, stream=True, stream_options=options), self._service, self._id
            )
            return await self._chat.prepare()
        except RequestError as error:
            error.param = MESSAGE_PARAMS.get(error.param or "", error.param)
            raise

    async def whole(self, stream: OutputStream) -> Message:
        """Wait for everything."""
        async for _ in self._steps(stream):
            pass
        return self._message()

    async def events(self, stream: OutputStream) -> AsyncIterator[bytes]:
        """The events. An error is one of them: the stream has a good status already."""
        with stream:
            try:
                async for events in self._steps(stream):
                    yield b"".join(map(_written, events))
            except Exception as error:
                yield _written(error_object(describe(error)))

    async def _steps(self, stream: OutputStream) -> AsyncIterator[list[Event]]:
        """The events that each step brought."""
        begun = False
        async with aclosing(self._chat.chunks(stream)) as steps:
            async for chunks in steps:
                events = []
                for chunk in chunks:
                    self._usage = chunk.get("usage", self._usage)
                    if not begun:
                        begun = True
                        events.append({"type": "message_start", "message": self._message()})
                    events += self._read(chunk)
                if events:
                    yield events
        if self._finish_reason == "error":
            raise RequestError(str(self._stop_reason))
        if self._finish_reason is None:
            raise JaxEngineError("the engine gave up a request")
        message = self._message()
        ending = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
        yield [
            *self._writer.close(),
            {"type": "message_delta", "delta": ending, "usage": message["usage"]},
            {"type": "message_stop"},
        ]

    def _read(self, chunk: ChatChunk) -> list[Event]:
        return [event for choice in chunk["choices"] for event in self._read_choice(choice)]

    def _read_choice(self, choice: ChunkChoice) -> list[Event]:
        events: list[Event] = []
        delta = choice["delta"]
        if reasoning := delta.get("reasoning"):
            events += self._writer.thinking(reasoning)
        if content := delta.get("content"):
            events += self._writer.text(content)
        for fragment in delta.get("tool_calls", ()):
            events += self._writer.call(fragment)
        if choice["finish_reason"] is not None:
            self._finish_reason, self._stop_reason = choice["finish_reason"], choice.get("stop_reason")
        return events

    def _message(self) -> Message:
        """What there is of it by now."""
        stopped_by_text = self._finish_reason == "stop" and isinstance(self._stop_reason, str)
        reason = None if self._finish_reason is None else STOP_REASONS.get(self._finish_reason)
        if reason == "end_turn" and any(block["type"] == "tool_use" for block in self._writer.blocks):
            reason = "tool_use"  # a tool that was named ends a chat of OpenAI's as text does
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._service.model_names[0],
            "content": list(self._writer.blocks),
            "stop_reason": "stop_sequence" if stopped_by_text else reason,
            "stop_sequence": str(self._stop_reason) if stopped_by_text else None,
            "usage": _usage(self._usage),
        }


def _usage(usage: Mapping[str, Any]) -> MessageUsage:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return {
        "input_tokens": usage.get("prompt_tokens", 0) - cached,
        "output_tokens": usage.get("completion_tokens", 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def _written(event: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
