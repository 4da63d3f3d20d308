"""The next message of a conversation, `n` times: made a request of the engine, and read as its outputs come."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from jaxengine.contract.outputs import CompletionOutput, PositionLogprobs
from jaxengine.contract.request import Request
from jaxengine.errors import JaxEngineError
from jaxengine.front.output_stream import OutputStream
from jaxengine.server.conversation.conversation import Conversation
from jaxengine.server.conversation.message import Gain, MessageDelta
from jaxengine.server.conversation.prompt import render_prompt
from jaxengine.server.conversation.reading import ChatReader
from jaxengine.server.conversation.tools import (
    chat_reader,
    constrained,
    reads_special_tokens,
    template_tools,
    tool_use,
)
from jaxengine.server.generation.protocol import SamplingRequest
from jaxengine.server.generation.requests import LogprobBudget, make_requests, sampling_params
from jaxengine.server.generation.usage import UsageCounter
from jaxengine.server.generation.versions import TokenVersions
from jaxengine.server.service import Service


class Turn:
    """One conversation and the messages that go on with it.

    Attributes:
        usage: tokens read and written so far.
        budget: how many log probabilities a whole answer may have.
        prompt_token_ids: those of the prompt.
        handover: the `kv_transfer_params` of the answer, where another engine goes on.
        prompt_logprobs: the log probabilities of the prompt, once they have come.
    """

    usage: UsageCounter
    budget: LogprobBudget
    prompt_token_ids: list[int]
    handover: Mapping[str, Any] | None

    def __init__(self, asked: Conversation, body: SamplingRequest, service: Service) -> None:
        self._asked = asked
        self._body = body
        self._service = service
        self.prompt_logprobs: Sequence[PositionLogprobs | None] | None = None

    async def prepare(self, **fields: Any) -> list[Request]:
        """The engine's request; `fields` are those of `SamplingParams` that the body has under other names.

        Raises:
            RequestError: the conversation or its tools are malformed, or something is not allowed.
        """
        asked, body, service = self._asked, self._body, self._service
        use, reasoning = tool_use(asked, service), service.reasoning_format
        if body.skip_special_tokens is None and reads_special_tokens(use, reasoning, service.tokenizer):
            fields["skip_special_tokens"] = False
        params = sampling_params(body, service, response_format=asked.response_format, **fields)
        fits = body.truncate_prompt_tokens is None
        prompt = await render_prompt(asked, service, tools=template_tools(asked, use, service), must_fit=fits)
        text = prompt.text or ""
        form = params.structured_outputs
        if use.forced and asked.response_format is not None:
            form = None  # it is that of a text, and there will be none
        structure = constrained(form, use, reasoning, prompt=text)
        if structure is not params.structured_outputs:
            params = params.replace(structured_outputs=structure)
        requests = await make_requests([prompt], params, body, service, special=False)
        self.budget = LogprobBudget(params, service)
        self.prompt_token_ids = list(requests[0].prompt_token_ids)
        self.handover = requests[0].handover
        self.usage = UsageCounter(requests, service)
        self.usage.reasoning_tokens = None if reasoning is None else 0
        self._messages = [
            _Message(index, chat_reader(asked, use, reasoning, prompt=text), begin=asked.begin)
            for index in range(params.n)
        ]
        return requests

    async def steps(self, stream: OutputStream) -> AsyncGenerator[list[Gain]]:
        """What the messages gained in each step, never an empty list."""
        with stream:
            async for outputs in stream:
                gains = []
                for output in outputs:
                    self.usage.add(output)
                    if output.prompt_logprobs is not None:  # deltas bring them once
                        self.prompt_logprobs = output.prompt_logprobs
                    for completion in output.outputs:
                        gain = self._take(completion)
                        if gain.begins or gain.deltas or gain.finish_reason is not None:
                            gains.append(gain)
                if gains:
                    yield gains

    @property
    def answer_at(self) -> int | None:
        """Where in the text of the first message its answer begins, behind thoughts; None while it has not."""
        return self._messages[0].reader.answer_at

    def _take(self, completion: CompletionOutput) -> Gain:
        message = self._messages[completion.index]
        gain = message.take(completion)
        tokenizer = self._service.tokenizer
        if completion.finish_reason is not None and self.usage.reasoning_tokens is not None and tokenizer is not None:
            self.usage.reasoning_tokens += len(tokenizer.encode(message.reader.reasoning, add_special_tokens=False))
        return gain


class _Message:
    """Reads the outputs of one sequence: `begin`, then what is generated."""

    def __init__(self, index: int, reader: ChatReader, *, begin: str) -> None:
        self.reader = reader
        self._index = index
        self._began = False
        self._deltas = [MessageDelta(content=begin)] if begin else []
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] = []
        self._versions = TokenVersions()

    def take(self, completion: CompletionOutput) -> Gain:
        """Read an output: a delta, or everything at once."""
        reason = completion.finish_reason
        if reason == "abort" and completion.stop_reason is not None:
            raise JaxEngineError("the engine gave up a request")
        begins, self._began = not self._began, True
        self._versions.add(completion.weight_versions)
        self._token_ids += completion.token_ids
        self._logprobs += completion.logprobs or ()
        deltas, self._deltas = self._deltas, []
        deltas += self.reader.feed(completion.text)
        if reason is not None:
            last, reason = self.reader.finish(reason)
            deltas += last
        elif not deltas:
            return Gain(self._index, begins)
        token_ids, self._token_ids = self._token_ids, []
        logprobs, self._logprobs = self._logprobs, []
        versions = () if reason is None else self._versions.whole()
        return Gain(self._index, begins, deltas, token_ids, logprobs, reason, completion.stop_reason, versions)
