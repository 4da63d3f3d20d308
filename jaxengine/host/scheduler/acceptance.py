"""Which requests an engine can never serve: they end alone, before they wait for anything."""

from __future__ import annotations

from jaxengine.contract.media import PromptMedia
from jaxengine.contract.request import Request
from jaxengine.errors import ContextLengthError, RequestError
from jaxengine.host.adapters.slots import AdapterSlots
from jaxengine.host.media.encoders import Encoders
from jaxengine.host.scheduler.limits import SchedulerLimits


def check_request(
    request: Request,
    limits: SchedulerLimits,
    *,
    step_tokens: int,
    capacity: int,
    adapters: AdapterSlots | None,
    encoders: Encoders | None,
) -> None:
    """Refuse what can never run where a step has `step_tokens` and the KV pool holds `capacity` tokens of one sequence.

    Raises:
        ContextLengthError: the prompt, and what was made of it elsewhere, is too long.
        RequestError: it asks for what the engine was not started with, or what it shows cannot be encoded.
    """
    if request.priority and limits.scheduling_policy != "priority":
        raise RequestError(
            f"priority {request.priority} has no effect under scheduling_policy={limits.scheduling_policy!r}; "
            "start the engine with scheduling_policy='priority', or leave priority at 0",
            param="priority",
        )
    if request.adapter is not None and adapters is None:
        raise RequestError(f"adapter {request.adapter.name!r}: the engine was started without enable_lora")
    length = len(request.prompt_token_ids)
    if request.pooling is not None and request.pooling.whole and length > step_tokens:
        raise ContextLengthError(
            f"The prompt has {length} input tokens, which one step has to take at once, and a step has {step_tokens}. Shorten "
            "the prompt, or start the engine with more tokens a step (max_num_batched_tokens).",
            param="input_tokens",
        )
    if request.media is not None:
        _check_media(request, request.media, encoders, limits, step_tokens)
    yielded = max((len(each.token_ids) for each in request.history if not each.ended), default=0)
    if length + yielded > capacity:
        after = f" and an output of {yielded} tokens so far" if yielded else ""
        raise ContextLengthError(
            f"The prompt has {length} input tokens{after}, and the KV cache holds {capacity} tokens in all. "
            "Shorten the prompt, or give the cache more memory (memory_utilization, num_pages).",
            param="input_tokens",
        )


def _check_media(
    request: Request, media: PromptMedia, encoders: Encoders | None, limits: SchedulerLimits, step_tokens: int
) -> None:
    if encoders is None:
        raise RequestError("the model takes no pictures or sounds, or the engine was started without them")
    if encoders.facts.sight and request.sampling.prompt_logprobs is not None:
        raise RequestError(
            "prompt_logprobs of a prompt with pictures whose tokens see each other are not built; leave them out",
            param="prompt_logprobs",
        )
    beside = 2 if limits.deterministic else 0  # tokens that may not be left alone before and behind
    encoders.check_fits(media, longest_run=step_tokens - beside)
