"""Request fields of OpenAI's and vLLM's that a protocol file does not declare: without effect on an answer, or refused by name.

Every field of their schemas is either declared by its endpoint or here; a test compares. Others are ignored with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jaxengine.errors import UnsupportedError

logger = logging.getLogger("jaxengine")

HARMLESS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "prediction",
        "session_id",
        "guided_decoding_backend",
    }
)
"""Fields that change nothing about an answer here."""

_TEXT = "only text models are built"
_CHAT = "only chat requests have it"

ABSENT: Mapping[str, str] = {
    "suffix": "no model here fills in the middle",
    "best_of": "vLLM removed it too; use n",
    "use_beam_search": "use LLM.beam_search offline",
    "length_penalty": "it ranks beams; use LLM.beam_search offline",
    "logits_processors": "use logit_bias, bad_words or allowed_token_ids",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": _TEXT,
    "modalities": _TEXT,
    "media_io_kwargs": _TEXT,
    "mm_processor_kwargs": _TEXT,
    "use_audio_in_video": _TEXT,
    "web_search_options": "the server makes no outbound requests",
    "moderation": "the server makes no outbound requests",
    "prompt_embeds": "prompts are text or token ids",
    "thinking_token_budget": "completions and chat requests have it",
    "repetition_detection": "not built yet",
    "watermarking": "not built",
    "logprob_token_ids": "use logprobs",
    "stream_interval": "every step's tokens are sent",
    "return_token_offsets": "not built; return_token_ids is",
    "return_prompt_text": "not built; /tokenize and /detokenize show what a template makes of messages",
    "vllm_xargs": "there are no custom processors to take them",
    "kv_transfer_params": "the KV cache is not transferred between engines",
    "ec_transfer_params": _TEXT,
    "truncation_side": "embeddings keep the beginning of an input",
    "lora_request": "LoRA is not built yet",
    "tools": _CHAT,
    "tool_choice": _CHAT,
    "top_logprobs": "use logprobs, a number",
    "reasoning_effort": "chat requests have it, and /v1/responses as reasoning.effort",
    "response_format": "/v1/responses has it as text.format",
    "max_tokens": "/v1/responses has it as max_output_tokens",
    "max_completion_tokens": "completions have it as max_tokens, /v1/responses as max_output_tokens",
    "max_output_tokens": "only /v1/responses has it; use max_tokens",
    "n": "one response is made; send the request again for another",
    "echo": "a response has its own text only",
    "logprobs": "/v1/responses has it as top_logprobs",
    "prompt_logprobs": "completions and chat requests have it",
    "return_token_ids": "completions and chat requests have it",
    "return_tokens_as_token_ids": "completions and chat requests have it",
    "continue_final_message": "completions and chat requests can go on with a text",
    "chat_template": "chat requests have it",
    "documents": "chat requests have it",
    "enable_response_messages": "/tokenize shows what a template makes of messages",
    "previous_input_messages": "use previous_response_id",
    "conversation": "use previous_response_id",
    "prompt": "prompt templates are not kept here; send the text itself",
    "context_management": "send what the model shall read",
}
"""What is not built, or is called something else at the endpoint that was asked, and what to do."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "length_penalty": (1,),
    "function_call": ("none",),
    "stream_interval": (1,),
    "tool_choice": ("none",),
    "modalities": (["text"],),
    "thinking_token_budget": (-1,),
    "truncation_side": ("right",),
    "n": (1,),
}
"""Values, beside null, that ask for what is done anyway. Where none are named, whatever is empty or false does."""


def check_unknown(extra: Mapping[str, Any] | None) -> None:
    """Look at the fields of a request that its protocol does not declare.

    Raises:
        UnsupportedError: one asks for something that is not built; its neutral values pass.
    """
    if not extra:
        return
    for name, value in extra.items():
        asks = value not in NEUTRAL[name] if name in NEUTRAL else bool(value)
        if name in ABSENT and value is not None and asks:
            raise UnsupportedError(f"{name} is not supported: {ABSENT[name]}", param=name)
    unknown = sorted(name for name in extra if name not in ABSENT and name not in HARMLESS)
    if unknown:
        _warn(repr(unknown)[:300])


@lru_cache(maxsize=256)
def _warn(names: str) -> None:
    # Once per set of names: clients repeat themselves.
    logger.warning("request fields that mean nothing here are ignored: %s", names)
