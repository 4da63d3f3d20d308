"""The answer to a chat request: the same messages, whether they are built at once or delta by delta."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from jaxengine.contract.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from jaxengine.contract.request import Request as EngineRequest
from jaxengine.errors import JaxEngineError, RequestError
from jaxengine.front.output_stream import OutputStream
from jaxengine.server.conversation.message import MessageDelta, MessageReader
from jaxengine.server.conversation.prompt import render_prompt
from jaxengine.server.conversation.tools import (
    chat_reader,
    constrained,
    reads_special_tokens,
    template_tools,
    tool_use,
)
from jaxengine.server.endpoints.chat.protocol import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatCompletionRequest,
    ChatMessage,
    ChunkChoice,
    Delta,
    TokenLogprob,
    ToolCall,
)
from jaxengine.server.generation.logprobs import chat_logprobs, prompt_logprobs
from jaxengine.server.generation.requests import check_request, make_requests, sampling_params
from jaxengine.server.generation.usage import UsageCounter, wants_usage
from jaxengine.server.http.stream import event
from jaxengine.server.service import Service


class ChatAnswer:
    """One body, one prompt, `n` messages."""

    def __init__(self, body: ChatCompletionRequest, service: Service, response_id: str) -> None:
        self._body = body
        self._service = service
        self._head: ChatChunk = {
            "id": response_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": service.model_names[0],
            "choices": [],
            "system_fingerprint": service.fingerprint,
        }

    async def prepare(self) -> list[EngineRequest]:
        """Check the body and make the engine's request."""
        body, service = self._body, self._service
        check_request(body, service)
        if body.top_logprobs is not None and not body.logprobs and body.top_logprobs:
            raise RequestError("top_logprobs needs logprobs=true", param="top_logprobs")
        use, reasoning = tool_use(body, service), service.reasoning_format
        own: dict[str, Any] = {}
        if body.skip_special_tokens is None and reads_special_tokens(use, reasoning, service.tokenizer):
            own["skip_special_tokens"] = False
        params = sampling_params(
            body,
            service,
            max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            prompt_logprobs=body.prompt_logprobs,
            **own,
        )
        prompt = await render_prompt(body, service, tools=template_tools(body, use, service))
        text = prompt.text or ""
        own_form = params.structured_outputs
        if use.forced and body.response_format is not None:
            own_form = None  # it is that of a text, and there will be none
        structure = constrained(own_form, use, reasoning, prompt=text)
        if structure is not params.structured_outputs:
            params = params.replace(structured_outputs=structure)
        requests = await make_requests([prompt], params, body, service, special=False)
        self._prompt_token_ids = list(requests[0].prompt_token_ids)
        begin = _echoed(body, service.options.api.response_role)
        self._messages = [
            _Message(body, service, chat_reader(body, use, reasoning, prompt=text), begin=begin)
            for _ in range(params.n)
        ]
        self._usage = UsageCounter(requests, service)
        self._usage.reasoning_tokens = None if reasoning is None else 0
        return requests

    async def whole(self, stream: OutputStream) -> ChatCompletion:
        """Wait for everything."""
        known: list[PositionLogprobs | None] | None = None
        with stream:
            async for outputs in stream:
                for output in outputs:
                    self._usage.add(output)
                    known = output.prompt_logprobs
                    for completion in output.outputs:
                        self._take_completion(completion)
        return {
            "id": self._head["id"],
            "object": "chat.completion",
            "created": self._head["created"],
            "model": self._head["model"],
            "choices": [message.choice(index) for index, message in enumerate(self._messages)],
            "service_tier": None,
            "system_fingerprint": self._head["system_fingerprint"],
            "usage": self._usage.usage(),
            "prompt_logprobs": None if self._body.prompt_logprobs is None else prompt_logprobs(known),
            "prompt_token_ids": self._prompt_token_ids if self._body.return_token_ids else None,
            "kv_transfer_params": None,
        }

    async def events(self, stream: OutputStream) -> AsyncIterator[bytes]:
        """The chunks, as bytes of server-sent events: one piece for all that a step brought."""
        async with aclosing(self.chunks(stream)) as pieces:
            async for chunks in pieces:
                yield b"".join([event(chunk) for chunk in chunks])

    async def chunks(self, stream: OutputStream) -> AsyncGenerator[list[ChatChunk]]:
        """The chunks that each step brought, never an empty list."""
        at_end, always = wants_usage(self._body, self._service)
        with stream:
            async for outputs in stream:
                chunks = [chunk for output in outputs for chunk in self._take(output)]
                if always:
                    for chunk in chunks:
                        chunk["usage"] = self._usage.before() if _opens(chunk) else self._usage.usage()
                if chunks:
                    yield chunks
        if at_end:
            yield [{**self._chunk(), "usage": self._usage.usage()}]

    def _take(self, output: RequestOutput) -> list[ChatChunk]:
        self._usage.add(output)
        chunks = []
        for completion in output.outputs:
            message = self._messages[completion.index]
            if not message.began:
                first: Delta = {"role": self._service.options.api.response_role, "content": ""}
                opening = self._chunk(
                    {"index": completion.index, "delta": first, "logprobs": None, "finish_reason": None}
                )
                if self._body.return_token_ids:
                    opening["prompt_token_ids"] = self._prompt_token_ids
                chunks.append(opening)
            self._take_completion(completion)
            chunks += [self._chunk(choice) for choice in message.news(completion.index)]
        return chunks

    def _take_completion(self, completion: CompletionOutput) -> None:
        message = self._messages[completion.index]
        message.take(completion)
        tokenizer = self._service.tokenizer
        if completion.finish_reason is not None and self._usage.reasoning_tokens is not None and tokenizer is not None:
            self._usage.reasoning_tokens += len(tokenizer.encode(message.reasoning, add_special_tokens=False))

    def _chunk(self, *choices: ChunkChoice) -> ChatChunk:
        return {**self._head, "choices": list(choices)}


class _Message:
    """One message: `begin`, then what is read from the outputs of one sequence. Streams ask for its `news`, others for the whole
    `choice`."""

    def __init__(self, body: ChatCompletionRequest, service: Service, reader: MessageReader, *, begin: str) -> None:
        self.began = False
        self._reader = reader
        self._role = service.options.api.response_role
        self._return_ids = bool(body.return_token_ids)
        self._top = (body.top_logprobs or 0) if body.logprobs else None
        self._as_ids = bool(body.return_tokens_as_token_ids) or service.options.api.return_tokens_as_token_ids
        self._deltas = [MessageDelta(content=begin)] if begin else []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._finish_reason: str | None = None
        self._stop_reason: int | str | None = None

    @property
    def reasoning(self) -> str:
        """The reasoning read so far, told or not."""
        return self._reader.reasoning

    def take(self, completion: CompletionOutput) -> None:
        """Read an output: a delta, or everything at once."""
        if completion.finish_reason == "abort":
            raise JaxEngineError("the engine gave up a request")
        self.began = True
        self._token_ids += completion.token_ids
        if self._top is not None:
            self._logprobs += chat_logprobs(
                completion.token_ids, completion.logprobs or (), top=self._top, as_ids=self._as_ids
            )
        self._note(self._reader.feed(completion.text, completion.token_ids))
        if completion.finish_reason is not None:
            last, self._finish_reason = self._reader.finish(completion.finish_reason)
            self._note(last)
            self._stop_reason = completion.stop_reason

    def news(self, index: int) -> list[ChunkChoice]:
        """What it gained since the last call. Token ids and log probabilities wait for a chunk that goes out anyway, and the end
        is told with the last text, as vLLM does."""
        choices = [self._news(index, _delta(delta)) for delta in self._deltas]
        self._deltas.clear()
        if self._finish_reason is not None:
            if not choices:
                choices.append(self._news(index, {}))
            choices[-1]["finish_reason"] = self._finish_reason
            choices[-1]["stop_reason"] = self._stop_reason
        return choices

    def choice(self, index: int) -> ChatChoice:
        """All of it."""
        assert self._finish_reason is not None, "the message is not finished"
        calls = _joined_calls(self._deltas)
        content = "".join(delta.content for delta in self._deltas)
        message: ChatMessage = {
            "role": self._role,
            "content": None if calls and not content else content,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": "".join(delta.reasoning for delta in self._deltas) or None,
        }
        if calls:
            message["tool_calls"] = calls
        return {
            "index": index,
            "message": message,
            "logprobs": None if self._top is None else {"content": self._logprobs, "refusal": None},
            "finish_reason": self._finish_reason,
            "stop_reason": self._stop_reason,
            "token_ids": self._token_ids if self._return_ids else None,
        }

    def _note(self, delta: MessageDelta) -> None:
        if delta:
            self._deltas.append(delta)

    def _news(self, index: int, delta: Delta) -> ChunkChoice:
        logprobs, self._logprobs = self._logprobs, []
        choice: ChunkChoice = {
            "index": index,
            "delta": delta,
            "logprobs": {"content": logprobs, "refusal": None} if logprobs else None,
            "finish_reason": None,
        }
        if self._return_ids:
            choice["token_ids"], self._token_ids = self._token_ids, []
        return choice


def _opens(chunk: ChatChunk) -> bool:
    """Whether it only says that an answer begins."""
    return any("role" in choice["delta"] for choice in chunk["choices"])


def _echoed(body: ChatCompletionRequest, role: str) -> str:
    """The text of the last message, where the answer is told with it: it is one of the same role, or the one that goes on."""
    last = body.messages[-1] if body.echo and body.messages else {}
    if body.add_generation_prompt is not False and last.get("role") != role:
        return ""
    content = last.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _delta(delta: MessageDelta) -> Delta:
    written: Delta = {}
    if delta.reasoning:
        written["reasoning"] = delta.reasoning
    if delta.content:
        written["content"] = delta.content
    if delta.tool_calls:
        written["tool_calls"] = list(delta.tool_calls)
    return written


def _joined_calls(deltas: list[MessageDelta]) -> list[ToolCall]:
    """The tool calls that fragments add up to."""
    calls: dict[int, ToolCall] = {}
    for fragment in (call for delta in deltas for call in delta.tool_calls):
        function = fragment["function"]
        if fragment["index"] not in calls:
            calls[fragment["index"]] = {
                "id": fragment["id"],
                "type": "function",
                "function": {"name": function["name"], "arguments": ""},
            }
        calls[fragment["index"]]["function"]["arguments"] += function.get("arguments", "")
    return [calls[index] for index in sorted(calls)]
