"""The answer to a chat request: the same messages, whether they are built at once or delta by delta."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from jaxengine.contract.outputs import PositionLogprobs
from jaxengine.contract.request import Request as EngineRequest
from jaxengine.errors import RequestError
from jaxengine.front.output_stream import OutputStream
from jaxengine.server.conversation.conversation import Conversation
from jaxengine.server.conversation.message import Gain, MessageDelta
from jaxengine.server.conversation.message import ToolCall as Call
from jaxengine.server.conversation.turn import Turn
from jaxengine.server.endpoints.chat.protocol import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatCompletionRequest,
    ChatLogprobs,
    ChatMessage,
    ChunkChoice,
    Delta,
    ToolCall,
)
from jaxengine.server.generation.logprobs import chat_logprobs, prompt_logprobs
from jaxengine.server.generation.protocol import FinishReason, PromptLogprobs, StopReason
from jaxengine.server.generation.requests import check_generation
from jaxengine.server.generation.usage import wants_usage
from jaxengine.server.generation.versions import TokensOfVersion
from jaxengine.server.http.names import called
from jaxengine.server.http.pieces import JsonArray, Slices
from jaxengine.server.http.stream import event
from jaxengine.server.service import Service


class ChatAnswer:
    """One body, one prompt, `n` messages."""

    def __init__(self, body: ChatCompletionRequest, service: Service, response_id: str) -> None:
        self._body = body
        self._service = service
        self._role = service.options.api.response_role
        self._top = (body.top_logprobs or 0) if body.logprobs else None
        self._as_ids = bool(body.return_tokens_as_token_ids) or service.options.api.return_tokens_as_token_ids
        self._head: ChatChunk = {
            "id": response_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": service.answered_by(body.model),
            "choices": [],
            "system_fingerprint": service.fingerprint,
        }

    async def prepare(self) -> list[EngineRequest]:
        """Check the body and make the engine's request."""
        body, service = self._body, self._service
        check_generation(body, service)
        if body.top_logprobs is not None and not body.logprobs and body.top_logprobs:
            raise RequestError.of("top_logprobs", "needs logprobs=true")
        self._turn = Turn(Conversation.of(body, begin=_echoed(body, self._role)), body, service)
        newer = body.max_completion_tokens is not None
        names = {"logprobs": "top_logprobs" if body.top_logprobs else "logprobs"}
        with called({**names, "max_tokens": "max_completion_tokens" if newer else "max_tokens"}):
            return await self._turn.prepare(
                max_tokens=body.max_completion_tokens if newer else body.max_tokens,
                logprobs=self._top,
                prompt_logprobs=body.prompt_logprobs,
            )

    async def whole(self, stream: OutputStream) -> ChatCompletion:
        """Wait for everything."""
        body, turn, slices = self._body, self._turn, Slices()
        scores: PromptLogprobs | None = None
        messages: dict[int, WholeMessage] = {}
        async with aclosing(turn.steps(stream)) as steps:
            async for gains in steps:
                if scores is None and turn.prompt_logprobs is not None:
                    scores = await prompt_logprobs(turn.prompt_logprobs, slices)
                for gain in gains:
                    turn.budget.spend(len(gain.token_ids))
                    messages.setdefault(gain.message, WholeMessage(gain.message)).add(
                        gain, self._logprobs(gain.token_ids, gain.logprobs)
                    )
                    await slices.turn()
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(messages[index]) for index in sorted(messages)],
            "service_tier": None,
            "usage": turn.usage.usage(),
            "prompt_logprobs": scores,
            "prompt_token_ids": turn.prompt_token_ids if body.return_token_ids else None,
            "kv_transfer_params": None if turn.handover is None else dict(turn.handover),
        }

    async def events(self, stream: OutputStream) -> AsyncIterator[bytes]:
        """The chunks, as bytes of server-sent events: one piece for all that a step brought."""
        at_end, always = wants_usage(self._body, self._service)
        usage = self._turn.usage
        async with aclosing(self._turn.steps(stream)) as steps:
            async for gains in steps:
                written = []
                for gain in gains:
                    if gain.begins:
                        chunk = self._opening(gain.message)
                        written.append(event({**chunk, "usage": usage.before()} if always else chunk))
                    for choice in self._chunk_choices(gain):
                        chunk = self._chunk([choice])
                        written.append(event({**chunk, "usage": usage.usage()} if always else chunk))
                yield b"".join(written)
        if at_end:
            yield event({**self._chunk([]), "usage": usage.usage()})

    def _opening(self, index: int) -> ChatChunk:
        """The chunk that only says that a message begins."""
        first: Delta = {"role": self._role, "content": ""}
        chunk = self._chunk([{"index": index, "delta": first, "logprobs": None, "finish_reason": None}])
        if self._body.return_token_ids:
            chunk["prompt_token_ids"] = self._turn.prompt_token_ids
        return chunk

    def _chunk_choices(self, gain: Gain) -> list[ChunkChoice]:
        """A choice for each delta. The end is told with the last text, as vLLM does."""
        ends = gain.finish_reason is not None
        choices: list[ChunkChoice] = []
        for place, delta in enumerate(gain.deltas or ([MessageDelta()] if ends else [])):
            choice: ChunkChoice = {
                "index": gain.message,
                "delta": _delta(delta),
                "logprobs": self._logprobs(gain.token_ids, gain.logprobs) if place == 0 and gain.logprobs else None,
                "finish_reason": None,
            }
            if self._body.return_token_ids:
                choice["token_ids"] = list(gain.token_ids) if place == 0 else []
            choices.append(choice)
        if ends:
            choices[-1]["finish_reason"] = gain.finish_reason
            choices[-1]["stop_reason"] = gain.stop_reason
            choices[-1]["weight_versions"] = list(gain.weight_versions)
        return choices

    def _choice(self, whole: WholeMessage) -> ChatChoice:
        assert whole.finish_reason is not None, "the message is not finished"
        calls, content = [_call(call) for call in whole.calls], "".join(whole.content)
        message: ChatMessage = {
            "role": self._role,
            "content": None if calls and not content else content,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": "".join(whole.reasoning) or None,
        }
        if calls:
            message["tool_calls"] = calls
        return {
            "index": whole.index,
            "message": message,
            "logprobs": None if self._top is None else {"content": whole.logprobs.as_list(), "refusal": None},
            "finish_reason": whole.finish_reason,
            "stop_reason": whole.stop_reason,
            "token_ids": whole.token_ids if self._body.return_token_ids else None,
            "weight_versions": list(whole.weight_versions),
        }

    def _logprobs(self, token_ids: Sequence[int], positions: Sequence[PositionLogprobs]) -> ChatLogprobs | None:
        if self._top is None:
            return None
        return {
            "content": chat_logprobs(token_ids, positions, top=self._top, as_ids=self._as_ids),
            "refusal": None,
        }

    def _chunk(self, choices: list[ChunkChoice]) -> ChatChunk:
        return {**self._head, "choices": choices}


class WholeMessage:
    """What a message has gained."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[Call] = []
        self.token_ids: list[int] = []
        self.logprobs = JsonArray()
        self.finish_reason: FinishReason | None = None
        self.stop_reason: StopReason = None
        self.weight_versions: Sequence[TokensOfVersion] = ()

    def add(self, gain: Gain, logprobs: ChatLogprobs | None) -> None:
        """Add the next part, and the log probabilities of its tokens."""
        for delta in gain.deltas:
            self.content.append(delta.content)
            self.reasoning.append(delta.reasoning)
            self.calls += delta.tool_calls
        self.token_ids += gain.token_ids
        if logprobs is not None:
            self.logprobs.extend(logprobs["content"])
        self.finish_reason, self.stop_reason = gain.finish_reason, gain.stop_reason
        self.weight_versions = gain.weight_versions


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
        written["tool_calls"] = [{"index": call.number, **_call(call)} for call in delta.tool_calls]
    return written


def _call(call: Call) -> ToolCall:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
