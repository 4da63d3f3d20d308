"""Request fields that no protocol file declares: ignored with a warning, or refused because their feature is absent."""

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
        "prediction",
        "verbosity",
        "session_id",
    }
)
"""Fields of OpenAI's API that change nothing about an answer here."""

ABSENT: Mapping[str, str] = {
    "suffix": "no model here fills in the middle",
    "best_of": "vLLM removed it too; use n",
    "use_beam_search": "use LLM.beam_search offline",
    "logits_processors": "use logit_bias, bad_words or allowed_token_ids",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "only text models are built",
    "web_search_options": "the server makes no outbound requests",
    "mm_processor_kwargs": "only text models are built",
    "prompt_embeds": "prompts are text or token ids",
    "thinking_token_budget": "reasoning budgets are not built yet",
    "repetition_detection": "not built yet",
    "logprob_token_ids": "use logprobs",
    "stream_interval": "every step's tokens are sent",
    "vllm_xargs": "there are no custom processors to take them",
    "kv_transfer_params": "the KV cache is not transferred between engines",
    "truncation_side": "generation keeps the end of a prompt, embeddings the beginning",
    "lora_request": "LoRA is not built yet",
    "tools": "only chat requests have it",
    "tool_choice": "only chat requests have it",
}

NEUTRAL: Mapping[str, Any] = {
    "best_of": 1,
    "function_call": "none",
    "stream_interval": 1,
    "tool_choice": "none",
}


def check_unknown(extra: Mapping[str, Any] | None) -> None:
    """Look at the fields of a request that its protocol does not declare.

    Raises:
        UnsupportedError: one asks for something that is not built; its neutral values pass.
    """
    if not extra:
        return
    for name, value in extra.items():
        if name in ABSENT and value and value != NEUTRAL.get(name):
            raise UnsupportedError(f"{name} is not supported: {ABSENT[name]}", param=name)
    unknown = sorted(name for name in extra if name not in ABSENT and name not in HARMLESS)
    if unknown:
        _warn(repr(unknown)[:300])


@lru_cache(maxsize=256)
def _warn(names: str) -> None:
    # Once per set of names: clients repeat themselves.
    logger.warning("request fields that mean nothing here are ignored: %s", names)
