"""A validated body becomes requests for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import RequestOutputKind, SamplingParams
from jaxengine.errors import RequestError
from jaxengine.front.prompts import ParsedPrompt
from jaxengine.server.generation.protocol import GenerationRequest, SamplingRequest
from jaxengine.server.generation.structured import structured_outputs
from jaxengine.server.generation.thinking import thinking_budget
from jaxengine.server.http.fields import JsonObject
from jaxengine.server.http.middleware import LABEL
from jaxengine.server.http.unknown import check_unknown, note_unknown
from jaxengine.server.long_text import encode_texts
from jaxengine.server.service import Service
from jaxengine.text.tokenizer import require_tokenizer

MANY_IDS = 4096
"""Token ids of a request, about a millisecond's work: with more it is made away from the event loop."""

LONGEST_STOP = 1000
"""Characters of a stop string."""

READ_BY_ENDPOINTS = {"prompt_logprobs", "structured_outputs"}
SAMPLING_FIELDS = tuple(
    field.name
    for field in fields(SamplingParams)
    if field.name in GenerationRequest.model_fields and field.name not in READ_BY_ENDPOINTS
)
"""Fields of a request that are fields of `SamplingParams` with the same meaning."""


def check_generation(body: GenerationRequest, service: Service) -> None:
    """What can be said of a completion or a chat before work is put into it.

    Raises:
        RequestError: as of `check_request`, or fields contradict each other.
    """
    check_request(body, service, stop=body.stop)
    most = service.options.limits.max_n
    if body.stream_options is not None and not body.stream:
        raise RequestError.of("stream_options", "needs stream=true")
    note_unknown("stream_options", body.stream_options)
    if body.prompt_logprobs is not None and body.stream:
        raise RequestError.of("prompt_logprobs", "needs stream=false")
    if body.n is not None and body.n > most:
        raise RequestError.of("n", f"must be at most {most} (--max-n), got {body.n}")


def check_request(body: SamplingRequest, service: Service, *, stop: str | Sequence[str] | None) -> None:
    """What can be said of any request that generates; `stop` are its stop strings.

    Raises:
        RequestError: the model is not served, a field asks for what is not built, or a cap is exceeded.
    """
    service.check_model(body.model)
    check_unknown(body.model_extra)
    check_label(body.request_id)
    limits = service.options.limits
    stops = [stop] if isinstance(stop, str) else stop or []
    if limits.max_stop_strings and len(stops) > limits.max_stop_strings:
        raise RequestError.of(
            "stop", f"must have at most {limits.max_stop_strings} strings (--max-stop-strings), got {len(stops)}"
        )
    if any(len(text) > LONGEST_STOP for text in stops):
        raise RequestError(f"a stop string must have at most {LONGEST_STOP} characters", param="stop")


def check_label(request_id: str | None) -> None:
    """Accept a request's `request_id`; leaving it out is fine.

    Raises:
        RequestError: it is no label.
    """
    if request_id is not None and not LABEL.fullmatch(request_id):
        raise RequestError.of("request_id", "must be 1 to 128 letters, digits and any of . _ : -; it is only a label")


def sampling_params(
    body: SamplingRequest, service: Service, *, response_format: JsonObject | None = None, **fields: Any
) -> SamplingParams:
    """The sampling that a body asks for, over the model's defaults; `fields` are those that endpoints read differently.

    Raises:
        RequestError: a value that is not allowed.
    """
    given = {name: value for name in SAMPLING_FIELDS if (value := getattr(body, name, None)) is not None}
    # Log probabilities of a whole answer are written as they come: all of them at once are millions of objects.
    scored = any(fields.get(name) is not None for name in ("logprobs", "prompt_logprobs"))
    given["output_kind"] = RequestOutputKind.DELTA if body.stream or scored else RequestOutputKind.FINAL_ONLY
    if isinstance(body, GenerationRequest) and body.kv_transfer_params is not None:
        given["extra_args"] = {"kv_transfer_params": body.kv_transfer_params}
    given["structured_outputs"] = structured_outputs(body, response_format)
    return service.intake.default_params.replace(**{**given, **fields})


async def make_requests(
    prompts: Sequence[ParsedPrompt], params: SamplingParams, body: SamplingRequest, service: Service, *, special: bool
) -> list[Request]:
    """One request per prompt. Texts are tokenised on a thread, `special` with the model's special tokens.

    Raises:
        RequestError: a prompt is empty, too long, or has ids that the model does not know.
    """
    await service.check_grammar(params.structured_outputs)
    adapter = await service.adapters.find(body.model)
    texts = [prompt.text for prompt in prompts if prompt.token_ids is None and prompt.text is not None]

    def make() -> list[Request]:
        encoded: list[list[int]] = []
        if texts:
            tokenizer = require_tokenizer(service.tokenizer, "a text prompt")
            must_fit = body.truncate_prompt_tokens is None
            encoded = encode_texts(tokenizer, texts, service, special=special, must_fit=must_fit)
        rest = iter(encoded)
        ids = [next(rest) if prompt.token_ids is None else prompt.token_ids for prompt in prompts]
        return [_request(index, prompt, ids[index]) for index, prompt in enumerate(prompts)]

    def _request(index: int, prompt: ParsedPrompt, ids: Sequence[int]) -> Request:
        if prompt.media is not None and body.truncate_prompt_tokens is not None:
            raise RequestError.of("truncate_prompt_tokens", "is for prompts that show nothing")
        ids = _truncated(ids, body, service.max_model_len)
        thinking = thinking_budget(params.thinking_token_budget, service, text=prompt.text, token_ids=ids)
        try:
            shown = () if prompt.media is None or adapter is not None else prompt.media.items
            through = adapter or service.adapters.of_shown(shown)
            entry = replace(prompt, token_ids=tuple(ids), cache_salt=body.cache_salt, adapter=through)
            return service.intake.request(
                entry, params, request_id=service.engine_id(), priority=body.priority or 0, thinking=thinking
            )
        except RequestError as error:
            if len(prompts) == 1:
                raise
            raise type(error)(f"prompt {index}: {error}", param=error.param) from error

    short = not texts and sum(len(prompt.token_ids or ()) for prompt in prompts) < MANY_IDS
    requests = make() if short and not params.bad_words else await service.in_thread(make)
    LogprobBudget(params, service).check(requests, streamed=bool(body.stream))
    return requests


class LogprobBudget:
    """How many log probabilities an answer may have, and how many it has by now."""

    def __init__(self, params: SamplingParams, service: Service) -> None:
        self._most = service.options.limits.max_logprob_entries
        self._params = params
        self._of_prompt, self._of_output = (
            0 if count is None else 1 + (service.intake.facts.vocab_size if count == -1 else count)
            for count in (params.prompt_logprobs, params.logprobs)
        )
        self._used = 0

    def check(self, requests: Sequence[Request], *, streamed: bool) -> None:
        """Accept requests whose answer will have no more, as far as that is known: a stream is read as it comes.

        Raises:
            RequestError: it may.
        """
        count = sum(len(request.prompt_token_ids) for request in requests) * self._of_prompt
        if not streamed and self._params.max_tokens is not None:
            count += sum(request.max_tokens for request in requests) * self._of_output
        self._refuse_over(count * self._params.n, "would have up to")

    def spend(self, num_tokens: int) -> None:
        """Note that so many tokens of output have come, if there are log probabilities of them.

        Raises:
            RequestError: the answer has too many.
        """
        self._used += num_tokens * self._of_output
        self._refuse_over(self._used, "has more than")

    def _refuse_over(self, count: int, what: str) -> None:
        if self._most and count > self._most:
            raise RequestError(
                f"the answer {what} {count} log probabilities, and at most {self._most} are allowed in one "
                "(--max-logprob-entries): ask for fewer at a time (prompts, n, max_tokens, logprobs, prompt_logprobs), or for a "
                "stream",
                param="logprobs" if self._of_output else "prompt_logprobs",
            )


def _truncated(ids: Sequence[int], body: SamplingRequest, max_model_len: int) -> Sequence[int]:
    """As many ids as the body keeps, the last ones unless it says otherwise; -1 leaves room for one output token."""
    keep = body.truncate_prompt_tokens
    if keep is None:
        return ids
    if keep == -1:
        keep = max_model_len - 1
    if not 1 <= keep <= max_model_len:
        raise RequestError.of(
            "truncate_prompt_tokens", f"must be from 1 to max_model_len ({max_model_len}), or -1, got {keep}"
        )
    return ids[:keep] if body.truncation_side == "right" else ids[-keep:]
