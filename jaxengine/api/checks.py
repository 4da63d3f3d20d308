"""What the calls of `LLM` and `AsyncLLM` check of their arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from jaxengine.contract.messages import PAUSE_MODES, TAGS, PauseMode
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.errors import RequestError

WeightSource = str | os.PathLike[str] | Mapping[str, Any] | Iterable[tuple[str, Any]]
"""A checkpoint's directory, or arrays by the names of checkpoints' tensors or of the model's parameters."""

P = TypeVar("P", SamplingParams, PoolingParams)


def check_level(level: int) -> None:
    """Accept a level of sleep.

    Raises:
        RequestError: there is no such level.
    """
    if level not in (0, 1, 2):
        raise RequestError.of(
            "level",
            f"must be 0 (nothing is computed), 1 (the weights are kept on the host) or 2 (they are dropped), got {level!r}",
        )


def check_tags(tags: Sequence[str] | None) -> tuple[str, ...]:
    """What is to wake up: all of it without tags.

    Raises:
        RequestError: a tag that is none.
    """
    given = TAGS if tags is None else (tags,) if isinstance(tags, str) else tuple(tags)
    if wrong := [tag for tag in given if tag not in TAGS]:
        raise RequestError.of("tags", f"must be some of {', '.join(TAGS)}, got {wrong[0]!r}")
    return given


def check_mode(mode: str) -> PauseMode:
    """What becomes of requests that run.

    Raises:
        RequestError: there is no such mode.
    """
    for known in PAUSE_MODES:
        if mode == known:
            return known
    raise RequestError.of(
        "mode",
        f"must be abort (they end with that), wait (they end first) or keep (they go on afterwards), got {mode!r}",
    )


def weight_source(weights: WeightSource) -> str | dict[str, Any]:
    """A checkpoint's directory, or arrays by name: of a tree of mappings the keys are joined by dots.

    Raises:
        RequestError: neither a path, nor a mapping, nor pairs of names and arrays; a name that comes twice.
    """
    if isinstance(weights, str | os.PathLike):
        return os.fspath(weights)
    pairs = weights.items() if isinstance(weights, Mapping) else weights
    arrays: dict[str, Any] = {}
    try:
        for name, value in _leaves("", pairs):
            if name in arrays:
                raise RequestError(f"the weights have two arrays of the name {name!r}", param="weights")
            arrays[name] = value
    except (TypeError, ValueError) as error:
        raise RequestError.of(
            "weights", f"must be a checkpoint's directory, arrays by name, or pairs (name, array): {error}"
        ) from error
    return arrays


def _leaves(before: str, pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    for key, value in pairs:
        if isinstance(value, Mapping):
            yield from _leaves(f"{before}{key}.", value.items())
        elif not (hasattr(value, "dtype") and hasattr(value, "shape")):
            raise TypeError(f"{before}{key} is of type {type(value).__name__}, and no array")
        else:
            yield f"{before}{key}", value


def params_for(kind: type[P], name: str, given: P | Sequence[P], count: int) -> list[P]:
    """Parameters for each of so many prompts.

    Raises:
        RequestError: neither one set of them nor as many as there are prompts.
    """
    if isinstance(given, kind):
        return [given] * count
    if isinstance(given, Sequence) and len(given) == count:
        wrong = next((item for item in given if not isinstance(item, kind)), None)
        if wrong is None:
            return list(given)
        raise RequestError(f"{name} must be {kind.__name__}, got {type(wrong).__name__}", param=name)
    shown = len(given) if isinstance(given, Sequence) else type(given).__name__
    raise RequestError(
        f"{name} must be one {kind.__name__} or a list of {count}, one per prompt, got {shown}", param=name
    )
