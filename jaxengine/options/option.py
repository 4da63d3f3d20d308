"""What an option is: a field of a frozen dataclass with its help, choices and aliases beside it; how given values are read.

Groups of options make up one value, such as `config.EngineConfig`: from flat names, and rejecting what it does not know.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any, Self

from jaxengine.errors import ConfigError, nearest
from jaxengine.options.names import as_mapping, translate

logger = logging.getLogger("jaxengine")

MIB = 1 << 20


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    aliases: tuple[str, ...] = (),
    check: Callable[[Any], str | None] | None = None,
    no_effect: Mapping[str, str] | None = None,
    split: bool = True,
    shapes: bool = False,
    others: str = "",
) -> Any:
    """A dataclass field that is an option.

    `others` is a sentence about values that are no choices, for the error.
    `check` returns what is allowed when the value is not. `no_effect` are values of vLLM's that leave it at its default, with the
    reason. `split` lets the items of a tuple be written as one word, with commas.
    `shapes` says that the option decides which programs exist: a bundle carries it, and a start with the bundle takes it over.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "aliases": aliases,
        "check": check,
        "no_effect": no_effect or {},
        "split": split,
        "shapes": shapes,
        "others": others,
    }
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def not_negative(value: Any) -> str | None:
    """A check for numbers that are not below 0."""
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
    return None if valid else "a number of at least 0"


def at_least(low: int) -> Callable[[Any], str | None]:
    """A check for integers that are not below `low`."""

    def check(value: Any) -> str | None:
        valid = isinstance(value, int) and not isinstance(value, bool) and value >= low
        return None if valid else f"an integer of at least {low}"

    return check


def number(allowed: str, holds: Callable[[float], bool]) -> Callable[[Any], str | None]:
    """A check for numbers of which something `holds`, in words `allowed`."""

    def check(value: Any) -> str | None:
        valid = isinstance(value, (int, float)) and not isinstance(value, bool) and holds(value)
        return None if valid else allowed

    return check


positive = number("a number above 0", lambda value: 0 < value < math.inf)
fraction = number("a number in (0, 1]", lambda value: 0 < value <= 1)
seconds = number("a number of seconds, 0 or more", lambda value: 0 <= value < 1e9)


def read_groups(composite: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """The groups of options of `composite` (a dataclass like `EngineConfig`) that flat names and values make up.

    Raises:
        ConfigError: a name that is unknown or stands for what is not built, or a value that is not allowed.
    """
    names = option_names(composite)
    groups: dict[str, dict[str, Any]] = {}
    given: dict[str, str] = {}
    for name, value in translate(options, names).items():
        group, spec = names[name]
        if spec.name in given:
            raise ConfigError(f"{given[spec.name]!r} and {name!r} are the same option; give one")
        given[spec.name] = name
        if value is not None:  # which is an option that is not given
            groups.setdefault(group, {})[spec.name] = _checked(name, spec, value)
    types = {spec.name: spec.default_factory for spec in dataclasses.fields(composite)}
    return {group: types[group](**values) for group, values in groups.items()}  # type: ignore[operator]


class Options:
    """The base of what is made of groups of options: a dataclass with a field for each group."""

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """Build from flat option names (or their aliases).

        Raises:
            ConfigError: an unknown name (with the nearest known one), a name of vLLM's for what is not built (with what there is
                instead), or a value that is not allowed.
        """
        return cls(**read_groups(cls, options))


def option_names(composite: type) -> dict[str, tuple[str, dataclasses.Field[Any]]]:
    """Group and field of every option by each of its names."""
    return {
        name: (group, spec)
        for group, spec in iter_options(composite)
        for name in (spec.name, *spec.metadata["aliases"])
    }


def iter_options(composite: type) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Every option as (group name, dataclass field): the one list that the command line and the checks read."""
    for group in dataclasses.fields(composite):
        for spec in dataclasses.fields(group.default_factory):  # type: ignore[arg-type]
            yield group.name, spec


def parse_token_count(text: str) -> int:
    """Read a length such as `4096`, `4k` (4,000) or `4K` (4,096).

    Raises:
        ConfigError: not such a length.
    """
    units = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
    unit = units.get(text[-1:], 1)
    digits = text[:-1] if unit != 1 else text
    try:
        return int(float(digits) * unit)
    except (ValueError, OverflowError):
        raise ConfigError(f"{text!r} is not a number of tokens; write 4096, 4k or 4K") from None


def _checked(name: str, spec: dataclasses.Field[Any], value: Any) -> Any:
    if reason := spec.metadata["no_effect"].get(value if isinstance(value, str) else None):
        logger.warning("%s=%r has no effect: %s", name, value, reason)
        return spec.default
    choices, check = spec.metadata["choices"], spec.metadata["check"]
    if choices is not None and value not in choices:
        more = f" {spec.metadata['others']}" if spec.metadata["others"] else ""
        hint = nearest(str(value), choices)
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}.{hint}{more}")
    allowed = check(value) if check is not None else None
    if allowed is not None:
        raise ConfigError(f"{name} must be {allowed}, got {value!r}")
    if isinstance(spec.default, bool) and not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}")
    if spec.default_factory is not dataclasses.MISSING:
        return as_mapping(name, value)
    return value
