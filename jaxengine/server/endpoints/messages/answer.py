"""The answer to a request of `/v1/messages`: the next message of a conversation, told as blocks and events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import orjson

from jaxengine.contract.request import Request as EngineRequest
from jaxengine.contract.sampling_params import RequestOutputKind
from jaxengine.errors import JaxEngineError, OverloadedError, RequestError
from jaxengine.front.output_stream import OutputStream
from jaxengine.server.conversation.message import Gain
from jaxengine.server.conversation.turn import Turn
from jaxengine.server.endpoints.messages.blocks import BlockWriter, Event
from jaxengine.server.endpoints.messages.errors import error_object
from jaxengine.server.endpoints.messages.input import conversation_of, thinking_budget_of
from jaxengine.server.endpoints.messages.protocol import Message, MessagesRequest, MessageUsage
from jaxengine.server.generation.protocol import PAUSED, StopReason
from jaxengine.server.generation.requests import check_request
from jaxengine.server.generation.usage import UsageCounter
from jaxengine.server.http.errors import describe
from jaxengine.server.http.names import called
from jaxengine.server.service import Service

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageAnswer:
    """One body, one message."""

    def __init__(self, body: MessagesRequest, service: Service, message_id: str) -> None:
        self._body = body
        self._service = service
        self._id = message_id
        self._writer = BlockWriter()
        self._finish_reason: str | None = None
        self._stop_reason: StopReason = None

    async def prepare(self) -> list[EngineRequest]:
        """Check the body and make the engine's request."""
        body, service = self._body, self._service
        own = body.stop_sequences is not None
        stop = body.stop_sequences if own else body.stop
        with called({"stop": "stop_sequences"} if own else {}):
            check_request(body, service, stop=stop)
            self._turn = Turn(conversation_of(body), body, service)
            fields = {"stop": stop, "thinking_token_budget": thinking_budget_of(body)}
            return await self._turn.prepare(
                max_tokens=body.max_tokens,
                output_kind=RequestOutputKind.DELTA,  # for a whole answer too: parts come in their order
                **{name: value for name, value in fields.items() if value is not None},
            )

    async def whole(self, stream: OutputStream) -> Message:
        """Wait for everything."""
        async for _ in self._steps(stream):
            pass
        if self._finish_reason is None:
            raise JaxEngineError("the engine gave up a request")
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
        async with aclosing(self._turn.steps(stream)) as steps:
            async for gains in steps:
                events = [] if begun else [{"type": "message_start", "message": self._message(started=False)}]
                begun = True
                events += [event for gain in gains for event in self._read(gain)]
                if events:
                    yield events
        if self._finish_reason == "error":
            raise RequestError(str(self._stop_reason))
        if self._finish_reason == "abort":
            raise OverloadedError(PAUSED)
        if self._finish_reason is None:
            return  # the stream was closed, as when the client has gone
        message = self._message()
        ending = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
        yield [
            *self._writer.close(),
            {"type": "message_delta", "delta": ending, "usage": message["usage"]},
            {"type": "message_stop"},
        ]

    def _read(self, gain: Gain) -> list[Event]:
        events: list[Event] = []
        for delta in gain.deltas:
            if delta.reasoning:
                events += self._writer.thinking(delta.reasoning)
            if delta.content:
                events += self._writer.text(delta.content)
            for call in delta.tool_calls:
                events += self._writer.call(call)
        if gain.finish_reason is not None:
            self._finish_reason, self._stop_reason = gain.finish_reason, gain.stop_reason
        return events

    def _message(self, *, started: bool = True) -> Message:
        """What there is of it by now. What was generated counts from when it has `started`."""
        stopped_by_text = self._finish_reason == "stop" and isinstance(self._stop_reason, str)
        reason = None if self._finish_reason is None else STOP_REASONS.get(self._finish_reason)
        if reason == "end_turn" and any(block["type"] == "tool_use" for block in self._writer.blocks):
            reason = "tool_use"  # a tool that was named ends a chat of OpenAI's as text does
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._service.answered_by(self._body.model),
            "content": list(self._writer.blocks),
            "stop_reason": "stop_sequence" if stopped_by_text else reason,
            "stop_sequence": str(self._stop_reason) if stopped_by_text else None,
            "usage": _usage(self._turn.usage, started=started),
        }


def _usage(usage: UsageCounter, *, started: bool) -> MessageUsage:
    cached = (usage.cached_tokens or 0) if started else 0
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "output_tokens": usage.completion_tokens if started else 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def _written(event: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
