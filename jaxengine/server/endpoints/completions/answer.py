"""The answer to a completion request: the same choices, whether they are built at once or chunk by chunk."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from jaxengine.contract.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from jaxengine.contract.request import Request as EngineRequest
from jaxengine.errors import JaxEngineError, RequestError
from jaxengine.front.output_stream import OutputStream
from jaxengine.front.prompts import ParsedPrompt
from jaxengine.server.endpoints.completions.logprobs import CompletionLogprobsWriter, LogprobColumns
from jaxengine.server.endpoints.completions.protocol import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from jaxengine.server.generation.logprobs import prompt_logprobs
from jaxengine.server.generation.offsets import TextOffsets
from jaxengine.server.generation.protocol import PromptLogprobs
from jaxengine.server.generation.requests import LogprobBudget, check_generation, make_requests, sampling_params
from jaxengine.server.generation.usage import UsageCounter, wants_usage
from jaxengine.server.generation.versions import TokenVersions
from jaxengine.server.http.pieces import PART, Slices, parts
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
            "model": service.answered_by(body.model),
            "choices": [],
            "system_fingerprint": service.fingerprint,
        }
        self._choices: dict[str, list[_Choice]] = {}
        self._prompt_logprobs: dict[str, PromptScores] = {}
        self._slices = Slices()
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
        self._handover = requests[0].handover
        self._usage = UsageCounter(requests, service)
        self._budget = LogprobBudget(params, service)
        return requests

    async def whole(self, stream: OutputStream) -> Completion:
        """Wait for everything."""
        choices: dict[int, WholeChoice] = {}
        with stream:
            async for outputs in stream:
                for output in outputs:
                    self._budget.spend(sum(len(each.token_ids) for each in output.outputs))
                    for choice in await self._take(output):
                        choices.setdefault(choice["index"], WholeChoice(choice["index"])).add(choice)
                    await self._slices.turn()
        frame = self._frame([choices[index].choice() for index in sorted(choices)])
        usage, handover = self._usage.usage(), None if self._handover is None else dict(self._handover)
        return {**frame, "usage": usage, "service_tier": None, "kv_transfer_params": handover}

    async def events(self, stream: OutputStream) -> AsyncIterator[bytes]:
        """The chunks, as bytes of server-sent events: one piece for all that a step brought."""
        at_end, always = wants_usage(self._body, self._service)
        with stream:
            async for outputs in stream:
                chunks = []
                for output in outputs:
                    for choice in await self._take(output):
                        chunk = self._frame([choice])
                        if always:
                            chunk["usage"] = self._usage.usage()
                        chunks.append(event(chunk))
                if chunks:
                    yield b"".join(chunks)
        if at_end:
            yield event({**self._frame([]), "usage": self._usage.usage()})

    async def _take(self, output: RequestOutput) -> list[CompletionChoice]:
        if not self._only_echo:
            self._usage.add(output)
        request_id, positions = output.request_id, output.prompt_logprobs
        if positions is not None:  # deltas bring them once, choices may begin later
            told = self._body.prompt_logprobs is not None
            written = await prompt_logprobs(positions, self._slices) if told else None
            self._prompt_logprobs[request_id] = PromptScores(positions if self._body.echo else None, written)
        known = self._prompt_logprobs.get(request_id, NO_SCORES)
        choices = self._choices[request_id]
        built = [await choices[each.index].build(each, known, self._slices) for each in output.outputs]
        if known.positions is not None and all(choice.began for choice in choices):
            self._prompt_logprobs[request_id] = PromptScores(None, known.written)  # none will echo them
        return [choice for choice in built if choice is not None]

    def _frame(self, choices: list[CompletionChoice]) -> Completion:
        return {**self._head, "choices": choices}


@dataclass(frozen=True, slots=True)
class PromptScores:
    """The log probabilities of a prompt: `positions` while choices are to echo them, and as they are told where they are."""

    positions: Sequence[PositionLogprobs | None] | None
    written: PromptLogprobs | None


NO_SCORES = PromptScores(None, None)


class _Choice:
    """One sequence: builds what it gained since it was last asked."""

    def __init__(self, index: int, request: EngineRequest, body: CompletionRequest, service: Service) -> None:
        self._index = index
        self._request = request
        self._body = body
        self._tokenizer = service.tokenizer
        self.began = False
        self._versions = TokenVersions()
        as_ids = bool(body.return_tokens_as_token_ids) or service.options.api.return_tokens_as_token_ids
        writer = CompletionLogprobsWriter(
            as_ids=as_ids, offsets=TextOffsets.of(request, service.tokenizer, echo=bool(body.echo))
        )
        self._writer = None if body.logprobs is None else writer

    async def build(self, completion: CompletionOutput, known: PromptScores, slices: Slices) -> CompletionChoice | None:
        """What to tell of an output; None when it is nothing. `known` are the log probabilities of the prompt."""
        if completion.finish_reason == "abort" and completion.stop_reason is not None:
            raise JaxEngineError("the engine gave up a request")
        self._versions.add(completion.weight_versions)
        body, first = self._body, not self.began
        if not (first or completion.text or completion.finish_reason or self._writer or body.return_token_ids):
            return None
        self.began = True
        echo = bool(body.echo) and first
        generated = not (body.echo and body.max_tokens == 0)
        choice: CompletionChoice = {
            "index": self._index,
            "text": (self._prompt_text() if echo else "") + (completion.text if generated else ""),
            "logprobs": await self._logprobs(
                completion if generated else None, known.positions if echo else None, slices
            ),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if body.return_token_ids:
            choice["token_ids"] = list(completion.token_ids) if generated else []
            if first:
                choice["prompt_token_ids"] = list(self._request.prompt_token_ids)
        if body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = known.written
        if completion.finish_reason is not None:
            choice["weight_versions"] = self._versions.whole()
        return choice

    async def _logprobs(
        self, completion: CompletionOutput | None, known: Sequence[PositionLogprobs | None] | None, slices: Slices
    ) -> CompletionLogprobs | None:
        if self._writer is None:
            return None
        known = () if known is None else known
        prompt_ids = self._request.prompt_token_ids[: len(known)]  # fewer where it was aborted within its prompt
        gained_ids, gained = (completion.token_ids, completion.logprobs or ()) if completion is not None else ((), ())
        first_text = self._tokenizer.token_text(prompt_ids[0]) if prompt_ids and self._tokenizer is not None else ""
        if len(known) + len(gained) <= PART:
            return self._writer.write((*prompt_ids, *gained_ids), (*known, *gained), first_text)
        columns = LogprobColumns()
        of_prompt = zip(parts(prompt_ids), parts(known), strict=True)
        for ids, part in chain(of_prompt, zip(parts(gained_ids), parts(gained), strict=True)):
            columns.extend(self._writer.write(ids, part, first_text))
            await slices.turn()
        return columns.whole()

    def _prompt_text(self) -> str:
        if self._request.prompt is not None or self._tokenizer is None:
            return self._request.prompt or ""
        skip = self._request.sampling.skip_special_tokens
        return self._tokenizer.decode(self._request.prompt_token_ids, skip_special_tokens=skip)


class WholeChoice:
    """A choice put together of what it gained."""

    def __init__(self, index: int) -> None:
        self._logprobs: LogprobColumns | None = None
        self._whole: CompletionChoice = {
            "index": index,
            "text": "",
            "logprobs": None,
            "finish_reason": None,
            "stop_reason": None,
            "token_ids": None,
            "prompt_token_ids": None,
            "prompt_logprobs": None,
        }

    def add(self, gained: CompletionChoice) -> None:
        """Add the next part."""
        whole = self._whole
        whole["text"] += gained["text"]
        if (logprobs := gained["logprobs"]) is not None:
            self._logprobs = self._logprobs or LogprobColumns()
            self._logprobs.extend(logprobs)
        if (token_ids := gained.get("token_ids")) is not None:
            whole["token_ids"] = [*(whole["token_ids"] or ()), *token_ids]
        whole["finish_reason"], whole["stop_reason"] = gained["finish_reason"], gained["stop_reason"]
        if "prompt_token_ids" in gained:
            whole["prompt_token_ids"] = gained["prompt_token_ids"]
        if "weight_versions" in gained:
            whole["weight_versions"] = gained["weight_versions"]
        if "prompt_logprobs" in gained:
            whole["prompt_logprobs"] = gained["prompt_logprobs"]

    def choice(self) -> CompletionChoice:
        """All of it."""
        return {**self._whole, "logprobs": None if self._logprobs is None else self._logprobs.whole()}


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
