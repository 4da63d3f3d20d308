"""The answer to a request of `/v1/responses`: the next message of a conversation, told as items and events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import orjson

from jaxengine.contract.request import Request as EngineRequest
from jaxengine.contract.sampling_params import RequestOutputKind
from jaxengine.front.output_stream import OutputStream
from jaxengine.server.conversation.message import Gain
from jaxengine.server.conversation.turn import Turn
from jaxengine.server.endpoints.responses.asked import NAMES, all_messages, check_built, conversation_of
from jaxengine.server.endpoints.responses.input import LOGPROBS, to_items, to_messages
from jaxengine.server.endpoints.responses.items import Event, ItemWriter
from jaxengine.server.endpoints.responses.protocol import ResponseObject, ResponsesRequest, ResponseUsage
from jaxengine.server.endpoints.responses.store import ResponseStore
from jaxengine.server.generation.logprobs import chat_logprobs
from jaxengine.server.generation.offsets import TextOffsets
from jaxengine.server.generation.protocol import PAUSED, StopReason, TokenLogprob
from jaxengine.server.generation.requests import check_request
from jaxengine.server.generation.usage import UsageCounter
from jaxengine.server.http.errors import describe
from jaxengine.server.http.fields import JsonObject
from jaxengine.server.http.names import called
from jaxengine.server.service import Service

COMPLETE = ("stop", "tool_calls")
"""The reasons to finish of a response that is whole."""


class ResponseAnswer:
    """One body, one response. It is kept for later turns once it has ended, unless the body says otherwise."""

    def __init__(self, body: ResponsesRequest, service: Service, response_id: str, *, store: ResponseStore) -> None:
        self._body = body
        self._service = service
        self._store = store
        self.id = response_id
        self._created = int(time.time())
        self._writer = ItemWriter()
        self._began = False
        self._finish_reason: str | None = None
        self._stop_reason: StopReason = None
        self._untold: list[tuple[int, TokenLogprob]] = []
        """Log probabilities of tokens that may be thoughts yet, by where the tokens begin."""

    @property
    def _format(self) -> JsonObject | None:
        return self._body.text.format if self._body.text else None

    async def prepare(self) -> list[EngineRequest]:
        """Check the body and make the engine's request."""
        body = self._body
        check_request(body, self._service, stop=body.stop)
        check_built(body)
        self._conversation = all_messages(body, self._store)
        wants_logprobs = LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
        self._top = body.top_logprobs or 0 if wants_logprobs else None
        with called(NAMES):
            self._turn = Turn(conversation_of(body, self._conversation), body, self._service)
            requests = await self._turn.prepare(
                max_tokens=body.max_output_tokens,
                logprobs=self._top,
                output_kind=RequestOutputKind.DELTA,  # for a whole answer too: items come in their order
            )
        self._offsets = TextOffsets.of(requests[0], self._service.tokenizer)
        return requests

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
                message = describe(error)["error"]["message"]
                if closing := self._writer.close(complete=False):
                    yield b"".join([write(event) for event in closing])
                response = self.end("failed", error=message)
            if response["status"] != "cancelled":  # whose client has gone
                yield write({"type": f"response.{response['status']}", "response": response})

    async def _steps(self, stream: OutputStream) -> AsyncIterator[list[Event]]:
        async with aclosing(self._turn.steps(stream)) as steps:
            async for gains in steps:
                self._turn.budget.spend(sum(len(gain.token_ids) for gain in gains))
                if events := [event for gain in gains for event in self._read(gain)]:
                    yield events
        if events := self._writer.close(complete=self._finish_reason in COMPLETE):
            yield events

    def _read(self, gain: Gain) -> list[Event]:
        events: list[Event] = []
        self._began = True
        logprobs: list[TokenLogprob] = []  # of the gain's tokens, told with its first text
        if self._top is not None:
            as_ids = self._service.options.api.return_tokens_as_token_ids
            logprobs = chat_logprobs(gain.token_ids, gain.logprobs, top=self._top, as_ids=as_ids)
            logprobs = self._of_answer(gain, logprobs)
        for delta in gain.deltas:
            if delta.reasoning:
                events += self._writer.reasoning(delta.reasoning)
            if delta.content:
                events += self._writer.content(delta.content, logprobs)
                logprobs = []
            for call in delta.tool_calls:
                events += self._writer.call(call)
        if logprobs and not gain.deltas:
            events += self._writer.without_text(logprobs)
        if gain.finish_reason is not None:
            self._finish_reason, self._stop_reason = gain.finish_reason, gain.stop_reason
        return events

    def _of_answer(self, gain: Gain, logprobs: list[TokenLogprob]) -> list[TokenLogprob]:
        """Those that are the answer's of all tokens until now; thoughts, and the marker behind them, have none to tell."""
        for token_id, position, entry in zip(gain.token_ids, gain.logprobs, logprobs, strict=True):
            text = position[token_id].decoded_token or ""
            self._untold.append((self._offsets.place(token_id, text), entry))
        answer_at = self._turn.answer_at
        if answer_at is None:
            return []
        untold, self._untold = self._untold, []
        return [entry for begin, entry in untold if begin >= answer_at]

    @property
    def response(self) -> ResponseObject:
        """The response while it runs."""
        return self._response("in_progress" if self._began else "queued")

    def end(self, status: str, *, error: str | None = None) -> ResponseObject:
        """Keep it as one that ended before its time."""
        self._writer.close(complete=False)
        response = self._response(status, error=error)
        self._keep(response)
        return response

    def _end(self) -> ResponseObject:
        """Keep it as what it came to: without a reason the stream was closed, as when the client has gone."""
        reason = self._finish_reason
        if reason in COMPLETE:
            response = self._response("completed")
        elif reason == "length":
            response = self._response("incomplete")
        elif reason is None:
            response = self._response("cancelled")
        else:
            why = self._stop_reason if reason == "error" else PAUSED
            response = self._response("failed", error=str(why))
        self._keep(response)
        return response

    def _keep(self, response: ResponseObject) -> None:
        if response["store"]:
            conversation = self._conversation + to_messages(self._writer.items)
            self._store.put(response, conversation, to_items(self._body.input))

    def _response(self, status: str = "in_progress", *, error: str | None = None) -> ResponseObject:
        body, defaults = self._body, self._service.intake.default_params
        done = status in ("completed", "incomplete")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if done else None,
            "model": self._service.answered_by(self._body.model),
            "status": status,  # type: ignore[typeddict-item]
            "output": list(self._writer.items),
            "error": None if error is None else {"code": "server_error", "message": error},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": _usage(self._turn.usage) if done else None,
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


def _usage(usage: UsageCounter) -> ResponseUsage:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
