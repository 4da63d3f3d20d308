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
"""The longest context that a model gets unasked: every row of a step has a table of so many tokens' pages, sent to the device."""


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Sizes that hold for the life of an engine, in tokens, sequences and tokens per page; `free_tokens` as in `buckets.Limits`.

    `fit_context` says that `max_model_len` may shrink to what fits memory (left open, or auto).
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int
    free_tokens: int
    fit_context: bool

    @classmethod
    def resolve(cls, config: EngineConfig, *, model_max_len: int, defaults: PlatformDefaults) -> EngineLimits:
        """Fill in what was left open.

        A context that nobody asked for is the model's, up to `OPEN_CONTEXT`, which the log says then. As many sequences run as
        the tokens of a step and buckets written out by hand have room for.

        Raises:
            ConfigError: options that contradict each other or the model.
        """
        asked = config.model.max_model_len
        fit = asked is None or asked in AUTO_LENGTH
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
        )

    def with_context(self, max_model_len: int) -> EngineLimits:
        """The same limits for another context length."""
        return dataclasses.replace(self, max_model_len=max_model_len)


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
