"""From a body whose inputs are pooled one by one to what each of them came to."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxengine.contract.adapters import Adapter
from jaxengine.contract.arrays import Floats
from jaxengine.contract.outputs import PooledOutput
from jaxengine.contract.pooling import Pooled
from jaxengine.contract.pooling_params import ACTIVATIONS, PoolingParams
from jaxengine.contract.request import Request as EngineRequest
from jaxengine.errors import OverloadedError, RequestError
from jaxengine.front.long_inputs import joined, parts_of
from jaxengine.front.output_stream import OutputStream
from jaxengine.front.pooled import data_of
from jaxengine.front.prompts import ParsedPrompt
from jaxengine.server.conversation.conversation import Conversation, refuse_template_fields
from jaxengine.server.conversation.prompt import render_prompt
from jaxengine.server.generation.protocol import PAUSED
from jaxengine.server.generation.requests import check_label
from jaxengine.server.http.unknown import check_unknown
from jaxengine.server.long_text import encode_texts
from jaxengine.server.pooling.protocol import InputRequest, PooledRequest
from jaxengine.server.service import Service
from jaxengine.text.tokenizer import require_tokenizer

MAX_INPUTS = 2048
"""OpenAI's limit. Not --max-choices: an input is one step's row and no stream."""


class PooledAnswer:
    """One body and its inputs: whoever extends it says which prompts these are, and what the answer looks like."""

    def __init__(self, body: PooledRequest, service: Service, response_id: str) -> None:
        self.service = service
        self.head = {
            "id": response_id,
            "object": "list",
            "created": int(time.time()),
            "model": service.answered_by(body.model),
        }
        self._body = body
        self._places: dict[str, int] = {}
        self._parts: list[tuple[int, Pooled | None]] = []
        self._prompt_tokens = 0
        self._adapter: Adapter | None = None

    @property
    def task(self) -> str | None:
        """The task of the inputs; None: the engine's first."""
        return None

    def params(self) -> PoolingParams:
        """What is wanted of each input."""
        body = self._body
        given: dict[str, Any] = {name: getattr(body, name) for name in ACTIVATIONS}
        return PoolingParams(task=self.task, truncate_prompt_tokens=body.truncate_prompt_tokens, **given)

    async def prompts(self, params: PoolingParams) -> Sequence[ParsedPrompt]:
        """Every input with its token ids."""
        raise NotImplementedError

    def answer(self, found: Sequence[Floats], usage: Mapping[str, Any]) -> Mapping[str, Any]:
        """The body of the answer, of what each input came to."""
        raise NotImplementedError

    async def prepare(self) -> list[EngineRequest]:
        """Check the body and make the engine's requests."""
        body, service = self._body, self.service
        service.check_model(body.model)
        check_unknown(body.model_extra)
        check_label(body.request_id)
        params = self.params()
        service.intake.facts.pooler.wanted(params)
        prompts = await self.prompts(params)
        self._adapter = await service.adapters.find(body.model)
        requests = await service.in_thread(lambda: self._requests(prompts, params))
        self._places = {request.request_id: index for index, request in enumerate(requests)}
        self._prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
        return requests

    async def whole(self, stream: OutputStream[PooledOutput]) -> Mapping[str, Any]:
        """Wait for everything."""
        outputs: list[Any] = [None] * len(self._places)
        cached = 0
        with stream:
            async for some in stream:
                for output in some:
                    if output.aborted and output.problem is None:
                        raise OverloadedError(PAUSED)
                    outputs[self._places[output.request_id]] = output
                    cached += output.num_cached_tokens
        usage: dict[str, Any] = {"prompt_tokens": self._prompt_tokens, "total_tokens": self._prompt_tokens}
        if self.service.options.api.enable_prompt_tokens_details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        remaining = iter(outputs)
        found = []
        for count, wanted in self._parts:
            own = [next(remaining) for _ in range(count)]
            found.append(data_of(own[0] if wanted is None else joined(own, wanted)))
        return self.answer(found, usage)

    def _requests(self, prompts: Sequence[ParsedPrompt], params: PoolingParams) -> list[EngineRequest]:
        requests = []
        for index, prompt in enumerate(prompts):
            try:
                requests += self._of_prompt(
                    replace(prompt, cache_salt=self._body.cache_salt, adapter=self._adapter), params
                )
            except RequestError as error:
                if len(prompts) == 1:
                    raise
                raise type(error)(f"input {index}: {error}", param=error.param) from error
        return requests

    def _of_prompt(self, prompt: ParsedPrompt, params: PoolingParams) -> list[EngineRequest]:
        """The requests of one input: several where it is longer than the context, and that is allowed."""
        intake, wanted = self.service.intake, None
        entries: Sequence[ParsedPrompt] = [prompt]
        if intake.facts.pooler.chunk_long:
            parts = parts_of(intake, prompt, params)
            wanted = intake.facts.pooler.wanted(params)
            entries, params = parts.prompts, params.replace(**parts.params)
        self._parts.append((len(entries), wanted))
        priority = self._body.priority or 0
        return [
            intake.request(entry, params, request_id=self.service.engine_id(), priority=priority) for entry in entries
        ]


class InputAnswer(PooledAnswer):
    """An answer to a body with `input` or `messages`."""

    def __init__(self, body: InputRequest, service: Service, response_id: str) -> None:
        super().__init__(body, service, response_id)
        self._input = body

    async def prompts(self, params: PoolingParams) -> Sequence[ParsedPrompt]:
        body, service = self._input, self.service
        if (body.input is None) == (body.messages is None):
            raise RequestError("give either input or messages", param="input")
        if body.messages is not None:
            asked = Conversation.of(body, add_generation_prompt=bool(body.add_generation_prompt))
            return [await render_prompt(asked, service)]
        refuse_template_fields(body, beside="input")
        inputs = listed(body.input)
        special = body.add_special_tokens is not False
        return await service.in_thread(lambda: encoded_inputs(inputs, params, service, special=special))


def encoded_inputs(
    inputs: Sequence[Any], params: PoolingParams, service: Service, *, special: bool = True
) -> list[ParsedPrompt]:
    """Texts or ids as prompts. Belongs on a thread."""
    texts = [item for item in inputs if isinstance(item, str)]
    if len(texts) < len(inputs):
        return [ParsedPrompt(None, tuple(ids)) for ids in inputs]
    tokenizer = require_tokenizer(service.tokenizer, "a text prompt")
    keep = service.intake.longest_prompt(params)
    must_fit = keep is None and not service.intake.facts.pooler.chunk_long
    encoded = encode_texts(tokenizer, texts, service, special=special, must_fit=must_fit, keep=keep)
    return [ParsedPrompt(text, tuple(ids)) for text, ids in zip(texts, encoded, strict=True)]


def listed(given: Any, name: str = "input") -> list[Any]:
    """One input or several, each text or ids: a bare list of ids is one.

    Raises:
        RequestError: none, or too many.
    """
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    if not given:
        raise RequestError.of(name, "must not be empty")
    if len(given) > MAX_INPUTS:
        raise RequestError.of(name, f"must have at most {MAX_INPUTS} entries, got {len(given)}")
    return list(given)
