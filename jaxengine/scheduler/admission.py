"""What a request must satisfy before it may wait: the last check before it can reach the device."""

from __future__ import annotations

from jaxengine.errors import ContextLengthError, RequestError
from jaxengine.request import Request


def check_request(request: Request, *, vocab_size: int, max_model_len: int, capacity: int) -> int:
    """Check `request` and return how many tokens each of its sequences may generate.

    `capacity` is how many tokens the KV pool holds for one sequence that has it to itself. As with `max_model_len`, a request
    whose prompt fits but whose output may not is cut short (finish reason `length`), not refused. The last token of an
    output is never computed on, so it needs no place in the pool. A prompt that is pooled needs no room for output.

    Raises:
        ContextLengthError: the prompt is too long, or leaves no room for the one output token that it needs.
        RequestError: an empty prompt, or ids outside the vocabulary.
    """
    length = len(request.prompt_token_ids)
    if length == 0:
        raise RequestError("the prompt is empty; give it at least one token", param="prompt")
    pooled = request.pooling is not None
    _check_length(length, max_model_len=max_model_len, capacity=capacity, output=not pooled)
    if not 0 <= min(request.prompt_token_ids) <= max(request.prompt_token_ids) < vocab_size:
        outside = next(token for token in request.prompt_token_ids if not 0 <= token < vocab_size)
        raise RequestError(
            f"the prompt holds token id {outside}, which is not in the vocabulary of {vocab_size} tokens",
            param="prompt",
        )
    for token in request.sampling.logit_bias or ():
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"logit_bias names token id {token}, which is not in the vocabulary of {vocab_size} tokens",
                param="logit_bias",
            )
    if request.max_tokens < 1:
        raise RequestError(f"max_tokens must be at least 1, got {request.max_tokens}", param="max_tokens")
    return 1 if pooled else min(request.max_tokens, max_model_len - length, capacity + 1 - length)


def _check_length(length: int, *, max_model_len: int, capacity: int, output: bool) -> None:
    if length > max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {max_model_len} tokens. However, the prompt has {length} input tokens, "
            "which exceeds it even without any output tokens. Shorten the prompt, or raise max_model_len.",
            param="input_tokens",
        )
    if length == max_model_len and output:
        raise ContextLengthError(
            f"This model's maximum context length is {max_model_len} tokens. However, the prompt has {length} input tokens, "
            "and with at least 1 output token it is longer than that. Shorten the prompt, or raise max_model_len.",
            param="input_tokens",
        )
    if length > capacity:
        raise ContextLengthError(
            f"The prompt has {length} input tokens, and the KV cache holds {capacity} tokens in all. "
            "Shorten the prompt, or give the cache more memory (memory_utilization, num_pages).",
            param="input_tokens",
        )
