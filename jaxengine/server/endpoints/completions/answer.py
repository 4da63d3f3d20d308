"""The answer to a completion request: the same choices, whether they are built at once or chunk by chunk."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from jaxengine.contract.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from jaxengine.contract.request import Request as EngineRequest
from jaxengine.errors import JaxEngineError, RequestError
from jaxengine.front.output_stream import OutputStream
from jaxengine.front.prompts import ParsedPrompt
from jaxengine.server.endpoints.completions.logprobs import CompletionLogprobsWriter
from jaxengine.server.endpoints.completions.protocol import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from jaxengine.server.generation.logprobs import prompt_logprobs
from jaxengine.server.generation.requests import check_generation, make_requests, sampling_params
from jaxengine.server.generation.usage import UsageCounter, wants_usage
from jaxengine.server.http.stream import event
from jaxengine.server.service import Service


class CompletionAnswer:
    """One body, its prompts, `n` choices for each."""

    def __init__(self, body: CompletionRequest, service: Service, response_id: str) -> None:
        self._body = body
        self._service = service
        self._head: Completion = {
            "id": response_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.model_names[0],
            "choices": [],
            "system_fingerprint": service.fingerprint,
        }
        self._choices: dict[str, list[_Choice]] = {}
        self._prompt_logprobs: dict[str, list[PositionLogprobs | None]] = {}
        self._n = body.n or 1
        self._only_echo = (
            bool(body.echo) and body.max_tokens == 0
        )  # the engine generates at least one token: it is dropped

    async def prepare(self) -> list[EngineRequest]:
        """Check the body and make the engine's requests."""
        body, service = self._body, self._service
        check_generation(body, service)
        prompts = _prompts(body.prompt)
        limits = service.options.limits
        if len(prompts) * self._n > limits.max_choices:
            raise RequestError(
                f"{len(prompts)} prompts with n={self._n} are more than {limits.max_choices} choices (--max-choices)",
                param="prompt",
            )
        params = sampling_params(
            body,
            service,
            response_format=body.response_format,
            max_tokens=1 if self._only_echo else body.max_tokens,
            logprobs=body.logprobs,
            prompt_logprobs=_most(body.prompt_logprobs, body.logprobs if body.echo else None),
        )
        requests = await make_requests(prompts, params, body, service, special=body.add_special_tokens is not False)
        for number, request in enumerate(requests):
            self._choices[request.request_id] = [
                _Choice(number * self._n + index, request, body, service) for index in range(self._n)
            ]
        self._usage = UsageCounter(requests, service)
        return requests

    async def whole(self, stream: OutputStream) -> Completion:
        """Wait for everything."""
        choices: list[CompletionChoice] = []
        with stream:
            async for outputs in stream:
                for output in outputs:
                    choices += self._take(output)
        choices.sort(key=lambda choice: choice["index"])
        for choice in choices:
            for name in ("token_ids", "prompt_token_ids", "prompt_logprobs"):
                choice.setdefault(name, None)  # type: ignore[misc]
        usage = self._usage.usage()
        return {**self._frame(choices), "usage": usage, "service_tier": None, "kv_transfer_params": None}

    async def events(self, stream: OutputStream) -> AsyncIterator[bytes]:
        """The chunks, as bytes of server-sent events: one piece for all that a step brought."""
        at_end, always = wants_usage(self._body, self._service)
        with stream:
            async for outputs in stream:
                chunks = []
                for output in outputs:
                    for choice in self._take(output):
                        chunk = self._frame([choice])
                        if always:
                            chunk["usage"] = self._usage.usage()
                        chunks.append(event(chunk))
                if chunks:
                    yield b"".join(chunks)
        if at_end:
            yield event({**self._frame([]), "usage": self._usage.usage()})

    def _take(self, output: RequestOutput) -> list[CompletionChoice]:
        if not self._only_echo:
            self._usage.add(output)
        if output.prompt_logprobs is not None:  # a stream of deltas brings them once, choices may begin later
            self._prompt_logprobs[output.request_id] = output.prompt_logprobs
        known = self._prompt_logprobs.get(output.request_id)
        choices = self._choices[output.request_id]
        built = [choices[completion.index].build(completion, known) for completion in output.outputs]
        return [choice for choice in built if choice is not None]

    def _frame(self, choices: list[CompletionChoice]) -> Completion:
        return {**self._head, "choices": choices}


class _Choice:
    """One sequence: builds what it gained since it was last asked."""

    def __init__(self, index: int, request: EngineRequest, body: CompletionRequest, service: Service) -> None:
        self._index = index
        self._request = request
        self._body = body
        self._tokenizer = service.tokenizer
        self._began = False
        as_ids = bool(body.return_tokens_as_token_ids) or service.options.api.return_tokens_as_token_ids
        hidden = frozenset[int]()
        if service.tokenizer is not None and request.sampling.skip_special_tokens:
            hidden = service.tokenizer.special_ids
        self._writer = None if body.logprobs is None else CompletionLogprobsWriter(as_ids=as_ids, hidden=hidden)

    def build(
        self, completion: CompletionOutput, known: list[PositionLogprobs | None] | None
    ) -> CompletionChoice | None:
        """What to tell of an output; None when it is nothing. `known` are the log probabilities of the prompt."""
        if completion.finish_reason == "abort":
            raise JaxEngineError("the engine gave up a request")
        body, first = self._body, not self._began
        if not (first or completion.text or completion.finish_reason or self._writer or body.return_token_ids):
            return None
        self._began = True
        echo = bool(body.echo) and first
        generated = not (body.echo and body.max_tokens == 0)
        choice: CompletionChoice = {
            "index": self._index,
            "text": (self._prompt_text() if echo else "") + (completion.text if generated else ""),
            "logprobs": self._logprobs(completion if generated else None, known if echo else None),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if body.return_token_ids:
            choice["token_ids"] = list(completion.token_ids) if generated else []
            if first:
                choice["prompt_token_ids"] = list(self._request.prompt_token_ids)
        if body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(known)
        return choice

    def _logprobs(
        self, completion: CompletionOutput | None, known: list[PositionLogprobs | None] | None
    ) -> CompletionLogprobs | None:
        if self._writer is None:
            return None
        prompt_ids = self._request.prompt_token_ids if known is not None else ()
        token_ids = (*prompt_ids, *(completion.token_ids if completion is not None else ()))
        positions = [*(known or ()), *((completion.logprobs or ()) if completion is not None else ())]
        first_text = self._tokenizer.token_text(prompt_ids[0]) if prompt_ids and self._tokenizer is not None else ""
        return self._writer.write(token_ids, positions, first_text)

    def _prompt_text(self) -> str:
        if self._request.prompt is not None or self._tokenizer is None:
            return self._request.prompt or ""
        skip = self._request.sampling.skip_special_tokens
        return self._tokenizer.decode(self._request.prompt_token_ids, skip_special_tokens=skip)


def _prompts(given: Any) -> list[ParsedPrompt]:
    """One prompt or several: a bare list of ids is one.

    Raises:
        RequestError: an empty list.
    """
    if isinstance(given, str):
        return [ParsedPrompt(given)]
    if not given:
        raise RequestError("The decoder prompt cannot be empty", param="prompt")
    if isinstance(given[0], int):
        return [ParsedPrompt(token_ids=tuple(given))]
    return [ParsedPrompt(item) if isinstance(item, str) else ParsedPrompt(None, tuple(item)) for item in given]


def _most(*counts: int | None) -> int | None:
    """The largest of the counts that were given; -1 stands for the whole vocabulary."""
    given = [count for count in counts if count is not None]
    return -1 if -1 in given else max(given, default=None)
