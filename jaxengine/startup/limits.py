"""Open options resolved: a new object, never written back into the configuration."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import Any

from buckets.explicit import parse_bucket
from jaxengine.device.runtime.target import PlatformDefaults
from jaxengine.errors import ConfigError
from jaxengine.host.scheduler.limits import check_tokens_for_all
from jaxengine.options.config import EngineConfig
from jaxengine.options.option import parse_token_count

logger = logging.getLogger("jaxengine")

AUTO_LENGTH = ("auto", "-1", -1)
OPEN_CONTEXT = 131_072
"""The longest context that a model gets unasked: beyond it each bucket has a second program (`device/runtime/space.py`)."""

LONGEST_WHOLE = 8192
"""The longest context of a model that computes prompts whole, unasked: a step has to take so many tokens."""


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Sizes that hold for the life of an engine, in tokens, sequences and tokens per page; `free_tokens` as in `buckets.Limits`.

    `fit_context` says that `max_model_len` may shrink to what fits memory (left open, or auto), and `context_option` which option
    it takes to be longer. `num_snapshots` are copies of recurrent layers' states, which memory decides (`plan_space`).
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int
    free_tokens: int
    fit_context: bool
    context_option: str = "max_model_len"
    num_snapshots: int = 0

    @classmethod
    def resolve(
        cls,
        config: EngineConfig,
        *,
        model_max_len: int,
        defaults: PlatformDefaults,
        whole_prompts: bool = False,
        usual_len: int | None = None,
    ) -> EngineLimits:
        """Fill in what was left open.

        With `whole_prompts` a step takes the longest prompt: the tokens of a step or the context, whichever was left open, follow
        from the other. A context that nobody asked for is the model's, up to `OPEN_CONTEXT`, which the log says then, and up to
        the `usual_len` that the model's files say it is used with. As many sequences run as the tokens of a step and buckets
        written out by hand have room for.

        Raises:
            ConfigError: options that contradict each other or the model.
        """
        asked = config.model.max_model_len
        fit = asked is None or asked in AUTO_LENGTH
        if fit and usual_len is not None:
            model_max_len = min(model_max_len, max(usual_len, 2))
        max_model_len = served_context(asked, model_max_len)
        if asked is None and max_model_len < model_max_len:
            logger.info(
                "context bounded to %d of the model's %d tokens; --max-model-len %d, or auto for what fits memory, for more",
                max_model_len,
                model_max_len,
                model_max_len,
            )
        max_tokens = config.scheduler.max_num_batched_tokens
        max_num_seqs = config.scheduler.max_num_seqs or min(
            defaults.max_num_seqs,
            max_tokens or defaults.max_num_seqs,
            _bucket_rows(config) or defaults.max_num_seqs,
        )
        context_option = "max_model_len"
        if whole_prompts:
            if fit and max_tokens is not None and max_tokens < max_model_len:
                context_option = "max_num_batched_tokens"
            max_model_len, max_tokens = _for_whole_prompts(config, max_model_len, max_tokens, max_num_seqs, defaults)
        max_tokens = max_tokens or max(defaults.max_num_batched_tokens, max_num_seqs)
        check_tokens_for_all(max_tokens, max_num_seqs)
        page_size = config.cache.page_size or min(defaults.page_size, _power_of_two_below(max_model_len))
        if page_size & (page_size - 1):
            raise ConfigError(f"page_size must be a power of two, got {page_size}")
        return cls(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_tokens,
            page_size=page_size,
            free_tokens=defaults.free_tokens,
            fit_context=fit,
            context_option=context_option,
        )

    def with_context(self, max_model_len: int, *, option: str | None = None) -> EngineLimits:
        """The same limits for another context length; a shorter one is because of an `option`."""
        because = option if option is not None and max_model_len < self.max_model_len else self.context_option
        return dataclasses.replace(self, max_model_len=max_model_len, context_option=because)


def _for_whole_prompts(
    config: EngineConfig, max_model_len: int, max_tokens: int | None, max_num_seqs: int, defaults: PlatformDefaults
) -> tuple[int, int]:
    """The context and the tokens of a step, which has to take a prompt as long as that."""
    asked = config.model.max_model_len
    if max_tokens is None:
        open_ended = asked is None or asked in AUTO_LENGTH
        most = max(defaults.max_num_batched_tokens, max_num_seqs)
        length = min(max_model_len, max(most, LONGEST_WHOLE)) if open_ended else max_model_len
        return length, max(most, length)
    if max_model_len <= max_tokens:
        return max_model_len, max_tokens
    if asked is None or asked in AUTO_LENGTH:
        logger.info("context bounded to %d tokens, those of a step: this model computes prompts whole", max_tokens)
        return max_tokens, max_tokens
    raise ConfigError(
        f"max_model_len ({max_model_len}) is more than max_num_batched_tokens ({max_tokens}), and this model computes prompts "
        "whole, in one step; raise the second or lower the first"
    )


def _bucket_rows(config: EngineConfig) -> int | None:
    """The sequences that buckets written out by hand have rows for; what cannot be read is found by their planner."""
    if config.compilation.bucket_planner != "explicit":
        return None
    try:
        return max(parse_bucket(item).batch for item in config.compilation.buckets or ())
    except ValueError:
        return None


def served_context(asked: Any, model_max_len: int) -> int:
    """The context that `max_model_len` stands for, in tokens; where it is to be what fits memory, the most that it can be.

    Raises:
        ConfigError: no length, or more than the model can do.
    """
    if asked in AUTO_LENGTH:
        return model_max_len
    if asked is None:
        return min(model_max_len, OPEN_CONTEXT)
    length = parse_token_count(asked) if isinstance(asked, str) else asked
    if not isinstance(length, int) or isinstance(length, bool) or length < 2:
        raise ConfigError(f"max_model_len must be at least 2 tokens, or auto, got {asked!r}")
    if length > model_max_len:
        raise ConfigError(
            f"max_model_len ({length}) is more than the model was made for ({model_max_len} positions). "
            "Use a smaller one, or override the model's RoPE scaling and max_position_embeddings with hf_overrides."
        )
    return length


def _power_of_two_below(number: int) -> int:
    return 1 << (number.bit_length() - 1)
