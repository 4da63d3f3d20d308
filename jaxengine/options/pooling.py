"""What is pooled, as it is asked for: vLLM's `pooler_config`, read and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxengine.errors import ConfigError, nearest

OF_PROMPT = ("LAST", "CLS", "MEAN")
OF_TOKENS = ("ALL", "STEP")
FLAGS = ("use_activation", "normalize", "softmax", "activation")
"""The names of one setting."""
NUMBERS = ("logit_bias", "logit_mean", "logit_sigma")
SIZES = ("dimensions", "max_embed_len", "step_tag_id")
KEYS = (
    *("pooling_type", "seq_pooling_type", "tok_pooling_type", "enable_chunked_processing", "returned_token_ids"),
    *FLAGS,
    *NUMBERS,
    *SIZES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolerOptions:
    """What was said; None is what the model's files say.

    `pooling` is one of `OF_PROMPT` or `OF_TOKENS`. `activate` scales embeddings to length one, or puts scores through the model's
    activation. A score has `mean` taken off it and is divided by `sigma`. With `chunk_long` prompts longer than the context are
    embedded in parts, up to `longest_input` tokens.
    """

    pooling: str | None = None
    activate: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] | None = None
    mean: float = 0.0
    sigma: float = 1.0
    chunk_long: bool = False
    longest_input: int | None = None


def read_pooler_config(config: Mapping[str, Any]) -> PoolerOptions:
    """What `pooler_config` asks for.

    Raises:
        ConfigError: an unknown key, a value that is not allowed, or two that contradict each other.
    """
    for key in config:
        if key not in KEYS:
            raise ConfigError(f"pooler_config has an unknown key {key!r}.{nearest(key, KEYS)}")
    given = {key: value for key, value in config.items() if value is not None}
    _check_types(given)
    if "logit_bias" in given and "logit_mean" in given:
        raise ConfigError("pooler_config: logit_bias is an older name of logit_mean; give one")
    sigma = float(given.get("logit_sigma", 1.0))
    if sigma == 0.0:
        raise ConfigError("pooler_config: logit_sigma must not be 0")
    if "max_embed_len" in given and not given.get("enable_chunked_processing"):
        raise ConfigError("pooler_config: max_embed_len is for enable_chunked_processing, which has to be true")
    chosen = given.get("returned_token_ids")
    return PoolerOptions(
        pooling=_pooling(given),
        activate=_one(given, FLAGS),
        dimensions=given.get("dimensions"),
        step_tag_id=given.get("step_tag_id"),
        returned_token_ids=None if chosen is None else tuple(chosen),
        mean=float(given.get("logit_mean", given.get("logit_bias", 0.0))),
        sigma=sigma,
        chunk_long=bool(given.get("enable_chunked_processing", False)),
        longest_input=given.get("max_embed_len"),
    )


def _pooling(given: Mapping[str, Any]) -> str | None:
    allowed = {
        "pooling_type": (*OF_PROMPT, *OF_TOKENS),
        "seq_pooling_type": OF_PROMPT,
        "tok_pooling_type": OF_TOKENS,
    }
    for key, names in allowed.items():
        if key in given and given[key] not in names:
            raise ConfigError(f"pooler_config: {key} must be one of {', '.join(names)}, got {given[key]!r}")
    # ALL says how tokens are pooled, which is how they always are, and leaves open what stands for a prompt
    tokens = given.get("tok_pooling_type")
    return given.get("pooling_type") or given.get("seq_pooling_type") or ("STEP" if tokens == "STEP" else None)


def _check_types(given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if key in (*FLAGS, "enable_chunked_processing") and not isinstance(value, bool):
            raise ConfigError(f"pooler_config: {key} must be true or false, got {value!r}")
        if key in NUMBERS and (
            isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value)
        ):
            raise ConfigError(f"pooler_config: {key} must be a number, got {value!r}")
        if key in SIZES and (isinstance(value, bool) or not isinstance(value, int) or value < (key != "step_tag_id")):
            raise ConfigError(f"pooler_config: {key} must be an integer above 0, got {value!r}")
        if key == "returned_token_ids" and not (
            isinstance(value, (list, tuple)) and value and all(type(item) is int and item >= 0 for item in value)
        ):
            raise ConfigError(f"pooler_config: {key} must be a list of numbers of classes, got {value!r}")


def _one(given: Mapping[str, Any], names: tuple[str, ...]) -> bool | None:
    said = {name: given[name] for name in names if name in given}
    if len(set(said.values())) > 1:
        raise ConfigError(f"pooler_config: {' and '.join(said)} are the same setting; give one")
    return next(iter(said.values()), None)
