"""Speculative decoding as it is asked for: vLLM's `speculative_config`, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxengine.errors import ConfigError, nearest

LOOKUP_LENGTH = 5
"""vLLM's: the shortest and the longest run of tokens that is looked up, where neither is said."""
KEYS = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramSpeculation:
    """Propose up to `num_tokens` drafts: what followed the last `max_length` to `min_length` tokens when they stood there before.

    Raises:
        ConfigError: numbers below 1, or a minimum above the maximum.
    """

    num_tokens: int
    min_length: int = LOOKUP_LENGTH
    max_length: int = LOOKUP_LENGTH

    def __post_init__(self) -> None:
        if self.num_tokens < 1:
            raise ConfigError(f"num_speculative_tokens must be at least 1, got {self.num_tokens}")
        if not 1 <= self.min_length <= self.max_length:
            raise ConfigError(
                f"prompt_lookup_min ({self.min_length}) must be at least 1 and at most prompt_lookup_max ({self.max_length})"
            )


def read_speculative_config(config: Mapping[str, Any]) -> NgramSpeculation | None:
    """What `speculative_config` asks for; None when it is empty.

    Raises:
        ConfigError: a method that is not built, an unknown key, or a value that is not allowed.
    """
    if not config:
        return None
    for key in config:
        if key not in KEYS:
            raise ConfigError(f"speculative_config has an unknown key {key!r}.{nearest(key, KEYS)}")
    method, model = config.get("method"), config.get("model")
    if method not in (None, "ngram", "[ngram]") or (model not in (None, "ngram", "[ngram]")):
        raise ConfigError(
            f"speculative_config asks for {method or 'a draft model'!r}{'' if model is None else f' ({model})'}; "
            'only prompt lookup is built: {"method": "ngram", "num_speculative_tokens": 4}'
        )
    if method is None and model is None:
        raise ConfigError('speculative_config needs a method: {"method": "ngram", "num_speculative_tokens": 4}')
    for key in KEYS[2:]:
        value = config.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ConfigError(f"speculative_config: {key} must be an integer, got {value!r}")
    if config.get("num_speculative_tokens") is None:
        raise ConfigError("speculative_config needs num_speculative_tokens: how many tokens are proposed at once")
    given = [config.get(key) for key in ("prompt_lookup_min", "prompt_lookup_max")]
    either = next((length for length in given if length is not None), LOOKUP_LENGTH)
    shortest, longest = (either if length is None else length for length in given)
    return NgramSpeculation(num_tokens=config["num_speculative_tokens"], min_length=shortest, max_length=longest)
