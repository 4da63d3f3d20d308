"""What is asked for is checked against what is true of the engine (`EngineFacts`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.contract.transfer import TransferParams
from jaxengine.errors import ContextLengthError, RequestError, UnsupportedError

REMEDIES = {
    "num_pages": "start the engine with more pages (num_pages)",
    "kv_cache_memory_bytes": "start the engine with a larger KV cache (kv_cache_memory_bytes)",
    "memory_utilization": "give the engine more memory for its KV cache (memory_utilization)",
    "max_num_batched_tokens": "start the engine with more tokens a step (max_num_batched_tokens)",
    "bundle": "compile the bundle for a longer context (max_model_len)",
}
"""What lets a context be longer that another option than max_model_len bounds, by that option."""


def check_prompt(ids: Sequence[int], facts: EngineFacts) -> None:
    """Accept the token ids of a prompt.

    Raises:
        RequestError: there are none, or one is out of vocabulary.
        ContextLengthError: there are more than `max_model_len`.
    """
    limit, length = facts.max_model_len, len(ids)
    if length == 0:
        raise RequestError("The decoder prompt cannot be empty", param="prompt")
    if length > limit:
        raise ContextLengthError(
            f"This model's maximum context length is {limit} tokens. However, your prompt contains {length} input "
            "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
            f"prompt{advice(facts)}.",
            param="input_tokens",
        )
    check_ids("prompt_token_ids", ids, facts)


def check_ids(name: str, ids: Sequence[int], facts: EngineFacts) -> None:
    """Accept token ids, which the request calls `name`.

    Raises:
        RequestError: one is out of vocabulary.
    """
    # One min and one max over the prompt, and no loop in Python for the ids of a prompt that is fine.
    if ids and not (min(ids) >= 0 and max(ids) < facts.vocab_size):
        wrong = next(token for token in ids if not 0 <= token < facts.vocab_size)
        raise RequestError(
            f"{name} holds token id {wrong}, which is out of vocabulary: ids are 0 to {facts.vocab_size - 1}",
            param=name,
        )


def check_generates(facts: EngineFacts) -> None:
    """Accept a request for output tokens.

    Raises:
        UnsupportedError: the model generates none.
    """
    if not facts.generates:
        raise UnsupportedError(
            f"this model generates nothing: its tasks are {', '.join(facts.pooler.tasks)}. Start the engine with "
            "runner='generate' if its checkpoint can continue texts"
        )


def check_room(length: int, params: SamplingParams, facts: EngineFacts) -> None:
    """See that there is room for a token behind a prompt of `length` tokens.

    Raises:
        ContextLengthError: there is none.
        RequestError: `max_tokens` is more than `max_model_len`.
    """
    limit = facts.max_model_len
    if length == limit:
        raise ContextLengthError(
            f"The prompt ({length} tokens) plus the number of requested output tokens (at least 1) is longer than the "
            f"maximum model length of {limit}. Please reduce the length of the input prompt{advice(facts)}.",
            param="input_tokens",
        )
    if params.max_tokens is not None and params.max_tokens > limit:
        raise RequestError(
            f"max_tokens={params.max_tokens} cannot be greater than max_model_len={limit}. "
            "Please request fewer output tokens.",
            param="max_tokens",
        )


def check_params(params: SamplingParams, facts: EngineFacts, *, max_logprobs: int) -> None:
    """Accept the numbers of log probabilities, at most `max_logprobs` (-1: any), and the token ids that parameters name.

    Raises:
        RequestError: too many, or an id is out of vocabulary.
    """
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        asked = facts.vocab_size if count == -1 else count
        if asked is not None and max_logprobs >= 0 and asked > max_logprobs:
            raise RequestError(
                f"{name}={count} asks for {asked} log probabilities per token; at most {max_logprobs} are "
                "allowed. Ask for fewer, or start the engine with a larger max_logprobs.",
                param=name,
            )
    check_ids("stop_token_ids", params.stop_token_ids or (), facts)
    check_ids("allowed_token_ids", params.allowed_token_ids or (), facts)
    check_ids("logit_bias", tuple(params.logit_bias or ()), facts)


def output_room(length: int, params: SamplingParams, facts: EngineFacts, *, most: int | None) -> int:
    """Output tokens that a prompt of `length` tokens, the request and the model's own cap `most` leave.

    Raises:
        RequestError: fewer than `min_tokens`.
    """
    limits = (facts.max_model_len - length, params.max_tokens, most)
    room = min(limit for limit in limits if limit is not None)
    if params.min_tokens > room:
        raise RequestError(
            f"min_tokens={params.min_tokens} is more than the {room} tokens that the prompt, max_tokens and "
            f"max_model_len ({facts.max_model_len}) leave room for",
            param="min_tokens",
        )
    return room


def handover(transfer: TransferParams | None, facts: EngineFacts) -> Mapping[str, Any] | None:
    """The `kv_transfer_params` of the answer.

    Raises:
        RequestError: the engine does not do what is asked for.
    """
    if transfer is None:
        return None
    own = facts.transfer
    if own is None or not (own.serves if transfer.hands_over else own.fetches):
        asked, role = (
            ("do_remote_decode", "kv_producer") if transfer.hands_over else ("do_remote_prefill", "kv_consumer")
        )
        raise RequestError.of(
            "kv_transfer_params",
            f"ask for {asked}, for which the engine has to be started with --kv-transfer-config and a kv_role of {role} "
            "or kv_both",
        )
    return own.answer() if transfer.hands_over else None


def advice(facts: EngineFacts) -> str:
    """What to do about a context that could be longer: the end of a sentence."""
    longest, option = facts.longest_context, facts.context_option
    if longest is None or longest <= facts.max_model_len:
        return ""
    if option in REMEDIES:
        return f", or {REMEDIES[option]}: the model takes up to {longest} tokens"
    return f", or start the engine with a longer context (max_model_len up to {longest})"
