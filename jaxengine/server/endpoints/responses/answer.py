"""The answer to a request of `/v1/responses`: a chat answer, told as items and events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import orjson
from pydantic import ValidationError

from jaxengine.contract.request import Request as EngineRequest
from jaxengine.errors import RequestError
from jaxengine.front.output_stream import OutputStream
from jaxengine.server.endpoints.chat.answer import ChatAnswer
from jaxengine.server.endpoints.chat.protocol import ChatChunk, ChatCompletionRequest
from jaxengine.server.endpoints.responses.input import (
    LOGPROBS,
    check_built,
    to_items,
    to_messages,
    to_response_format,
    to_tool_choice,
    to_tools,
)
from jaxengine.server.endpoints.responses.items import Event, ItemWriter
from jaxengine.server.endpoints.responses.protocol import ResponseObject, ResponsesRequest, ResponseUsage
from jaxengine.server.generation.protocol import SamplingRequest
from jaxengine.server.http.errors import describe
from jaxengine.server.http.fields import JsonObject
from jaxengine.server.service import Service

SAME_FIELDS = (*(SamplingRequest.model_fields.keys() - {"stream"}), "include_reasoning", "chat_template_kwargs")
"""Fields that a chat request has under the same name."""

CHAT_PARAMS = {"messages": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}
"""Names that errors of the chat request have here."""


class ResponseAnswer:
    """One body, one response. It is kept for later turns once it has ended, unless the body says otherwise."""

    def __init__(self, body: ResponsesRequest, service: Service, response_id: str) -> None:
        self._body = body
        self._service = service
        self.id = response_id
        self._created = int(time.time())
        self._writer = ItemWriter()
        self._began = False
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] | None = None

    @property
    def _format(self) -> JsonObject | None:
        return self._body.text.format if self._body.text else None

    async def prepare(self) -> list[EngineRequest]:
        """Check the body and make the engine's request."""
        body = self._body
        check_built(body)
        before = self._service.responses.messages(body.previous_response_id) if body.previous_response_id else []
        self._conversation = before + to_messages(body.input)
        try:
            self._chat = ChatAnswer(self._chat_request(), self._service, self.id)
            return await self._chat.prepare()
        except RequestError as error:
            error.param = CHAT_PARAMS.get(error.param or "", error.param)
            raise

    async def whole(self, stream: OutputStream) -> ResponseObject:
        """Wait for everything."""
        async for _ in self._steps(stream):
            pass
        return self._end()

    async def events(self, stream: OutputStream) -> AsyncIterator[bytes]:
        """The events, numbered. An error ends the response as failed: the stream has a good status already."""
        number = 0

        def write(event: Event) -> bytes:
            nonlocal number
            data = {**event, "sequence_number": number}
            number += 1
            return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(data))

        with stream:
            yield b"".join(
                [
                    write({"type": f"response.{step}", "response": self._response()})
                    for step in ("created", "in_progress")
                ]
            )
            try:
                async for events in self._steps(stream):
                    yield b"".join([write(event) for event in events])
                response = self._end()
            except Exception as error:
                response = self._response("failed", error=describe(error)["error"]["message"])
            yield write({"type": f"response.{response['status']}", "response": response})

    async def _steps(self, stream: OutputStream) -> AsyncIterator[list[Event]]:
        async with aclosing(self._chat.chunks(stream)) as steps:
            async for chunks in steps:
                if events := [event for chunk in chunks for event in self._read(chunk)]:
                    yield events
        if events := self._writer.close(complete=self._finish_reason != "length"):
            yield events

    def _read(self, chunk: ChatChunk) -> list[Event]:
        events: list[Event] = []
        self._began = True
        self._usage = chunk.get("usage", self._usage)
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if delta.get("reasoning"):
                events += self._writer.reasoning(delta["reasoning"])
            if delta.get("content"):
                logprobs = choice["logprobs"]
                events += self._writer.content(delta["content"], list(logprobs["content"]) if logprobs else [])
            for fragment in delta.get("tool_calls", ()):
                events += self._writer.call(fragment)
            self._finish_reason = choice["finish_reason"] or self._finish_reason
        return events

    @property
    def response(self) -> ResponseObject:
        """The response while it runs."""
        return self._response("in_progress" if self._began else "queued")

    def end(self, status: str, *, error: str | None = None) -> None:
        """Keep it as one that ended before its time."""
        self._writer.close(complete=False)
        self._keep(self._response(status, error=error))

    def _end(self) -> ResponseObject:
        response = self._response("incomplete" if self._finish_reason == "length" else "completed")
        self._keep(response)
        return response

    def _keep(self, response: ResponseObject) -> None:
        if response["store"]:
            conversation = self._conversation + to_messages(self._writer.items)
            self._service.responses.put(response, conversation, to_items(self._body.input))

    def _chat_request(self) -> ChatCompletionRequest:
        """The same request in the words of `/v1/chat/completions`; it streams, whoever reads it."""
        body = self._body
        system = [{"role": "system", "content": body.instructions}] if body.instructions else []
        wants_logprobs = LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
        fields: JsonObject = {name: value for name in SAME_FIELDS if (value := getattr(body, name)) is not None}
        optional: JsonObject = {
            "max_completion_tokens": body.max_output_tokens,
            "reasoning_effort": body.reasoning and body.reasoning.effort,
            "verbosity": body.text and body.text.verbosity,
            "tools": to_tools(body.tools),
            "tool_choice": to_tool_choice(body.tool_choice) if body.tools else None,
            "parallel_tool_calls": body.parallel_tool_calls if body.tools else None,
            "response_format": to_response_format(self._format),
        }
        fields |= {name: value for name, value in optional.items() if value is not None}
        try:
            return ChatCompletionRequest(
                messages=system + self._conversation,
                stream=True,
                stream_options={"include_usage": True},  # type: ignore[arg-type]
                logprobs=wants_logprobs,
                top_logprobs=body.top_logprobs or 0 if wants_logprobs else None,
                **fields,
            )
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"][:2]))
            raise RequestError(f"{field}: {first['msg']}", param=CHAT_PARAMS.get(field, field)) from None

    def _response(self, status: str = "in_progress", *, error: str | None = None) -> ResponseObject:
        body, defaults = self._body, self._service.intake.default_params
        done = status in ("completed", "incomplete")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if done else None,
            "model": self._service.model_names[0],
            "status": status,  # type: ignore[typeddict-item]
            "output": list(self._writer.items),
            "error": None if error is None else {"code": "server_error", "message": error},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": _usage(self._usage) if done and self._usage is not None else None,
            "instructions": body.instructions,
            "previous_response_id": body.previous_response_id,
            "store": body.store is not False,
            "background": bool(body.background),
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": defaults.temperature if body.temperature is None else body.temperature,
            "top_p": defaults.top_p if body.top_p is None else body.top_p,
            "top_logprobs": body.top_logprobs or 0,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "text": {"format": self._format or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "truncation": "disabled",
            "service_tier": body.service_tier,
            "user": body.user,
            "safety_identifier": body.safety_identifier,
            "prompt_cache_key": body.prompt_cache_key,
        }


def _usage(usage: Mapping[str, Any]) -> ResponseUsage:
    prompt, completion = usage["prompt_tokens_details"] or {}, usage.get("completion_tokens_details", {})
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": prompt.get("cached_tokens", 0), "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens", 0)},
        "total_tokens": usage["total_tokens"],
    }
