"""Speculative decoding as it is asked for: vLLM's `speculative_config`, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from jaxengine.errors import ConfigError, nearest

LOOKUP_LENGTH = 5
"""vLLM's: the shortest and the longest run of tokens that is looked up, where neither is said."""
LOOKUP_KEYS = ("prompt_lookup_max", "prompt_lookup_min")
KEYS = ("method", "model", "revision", "num_speculative_tokens", *LOOKUP_KEYS, "draft_tensor_parallel_size")
NGRAM_NAMES = ("ngram", "[ngram]")
MTP_NAMES = tuple(
    f"{family}_mtp"
    for family in (
        *("deepseek", "mimo", "mimo_v2", "glm4_moe", "glm4_moe_lite", "ernie", "nemotron_h"),
        *("qwen3_next", "qwen3_5", "minimax_m2", "step3p5"),
    )
)
"""What vLLM calls `mtp` by family. They are accepted for any: the target says which family it is."""
EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'


class Method(StrEnum):
    """What proposes drafts on the device: a model of its own, a head of a checkpoint of its own, or layers of the target's."""

    DRAFT_MODEL = "draft_model"
    EAGLE = "eagle"
    EAGLE3 = "eagle3"
    DFLASH = "dflash"
    MTP = "mtp"


METHODS = (*NGRAM_NAMES[:1], *Method)


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
        _check_count(self.num_tokens)
        if not 1 <= self.min_length <= self.max_length:
            raise ConfigError(
                f"prompt_lookup_min ({self.min_length}) must be at least 1 and at most prompt_lookup_max ({self.max_length})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSpeculation:
    """Propose up to `num_tokens` drafts with `model`, a directory or a name on the hub; None where the target has the layers.

    Without a `method` the model's config.json says what it is. `tensor_parallel_size` is how many devices it is asked to be
    spread over, None being those of the target.

    Raises:
        ConfigError: no tokens, or a model where the target's own layers are to draft, or none where they are not.
    """

    num_tokens: int
    method: Method | None
    model: str | None = None
    revision: str | None = None
    tensor_parallel_size: int | None = None

    def __post_init__(self) -> None:
        _check_count(self.num_tokens)
        if self.method is Method.MTP and self.model is not None:
            raise ConfigError(
                f"speculative_config: method 'mtp' drafts with layers of the model itself, and model={self.model!r} is given "
                "too; leave one of them out"
            )
        if self.method is not Method.MTP and self.model is None:
            raise ConfigError(
                f"speculative_config: method {self.method!s} needs the draft's model, a directory or a name"
            )


Speculation = NgramSpeculation | DraftSpeculation


def read_speculative_config(config: Mapping[str, Any]) -> Speculation | None:
    """What `speculative_config` asks for; None when it is empty.

    Raises:
        ConfigError: a method that is not built, an unknown key, or a value that is not allowed.
    """
    if not config:
        return None
    for key in config:
        if key not in KEYS:
            raise ConfigError(f"speculative_config has an unknown key {key!r}.{nearest(key, KEYS)}")
    for key in ("num_speculative_tokens", *LOOKUP_KEYS):
        value = config.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ConfigError(f"speculative_config: {key} must be an integer, got {value!r}")
    for key in ("method", "model", "revision"):
        value = config.get(key)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"speculative_config: {key} must be a string, got {value!r}")
    method, model = config.get("method"), config.get("model")
    if method is None and model is None:
        raise ConfigError(f"speculative_config needs a method or a model: {EXAMPLE}")
    count = config.get("num_speculative_tokens")
    if count is None:
        raise ConfigError("speculative_config needs num_speculative_tokens: how many tokens are proposed at once")
    if method in NGRAM_NAMES or (method is None and model in NGRAM_NAMES):
        return _ngram(config, count)
    return _draft(config, count)


def _ngram(config: Mapping[str, Any], count: int) -> NgramSpeculation:
    if config.get("model") not in (None, *NGRAM_NAMES):
        raise ConfigError(f"speculative_config: prompt lookup needs no model, got {config['model']!r}; leave it out")
    given = [config.get(key) for key in ("prompt_lookup_min", "prompt_lookup_max")]
    either = next((length for length in given if length is not None), LOOKUP_LENGTH)
    shortest, longest = (either if length is None else length for length in given)
    return NgramSpeculation(num_tokens=count, min_length=shortest, max_length=longest)


def _draft(config: Mapping[str, Any], count: int) -> DraftSpeculation:
    name = config.get("method")
    if name is not None and name not in (*METHODS, *MTP_NAMES):
        raise ConfigError(
            f"speculative_config: method {name!r} is not built; built are {', '.join(METHODS)}.{nearest(name, METHODS)}"
        )
    for key in LOOKUP_KEYS:
        if config.get(key) is not None:
            raise ConfigError(f"speculative_config: {key} belongs to method 'ngram', and another is asked for")
    size = config.get("draft_tensor_parallel_size")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise ConfigError(
            f"speculative_config: draft_tensor_parallel_size must be an integer, at least 1, got {size!r}"
        )
    method = Method.MTP if name in MTP_NAMES else None if name is None else Method(name)
    return DraftSpeculation(
        num_tokens=count,
        method=method,
        model=config.get("model"),
        revision=config.get("revision"),
        tensor_parallel_size=size,
    )


def _check_count(num_tokens: int) -> None:
    if num_tokens < 1:
        raise ConfigError(f"num_speculative_tokens must be at least 1, got {num_tokens}")
