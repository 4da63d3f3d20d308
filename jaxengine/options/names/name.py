"""One name of vLLM's: what becomes of its values."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxengine.errors import ConfigError

logger = logging.getLogger("jaxengine")


@dataclass(frozen=True, slots=True)
class Name:
    """What becomes of a name.

    `says` is a sentence: what there is instead, or why there is nothing to choose. `neutral` are values that ask for what is done
    anyway. Others become options (`becomes`), or are `moot`: noted and left. Where neither is said they are refused. The type of
    the first neutral value says how the command line reads it: a flag, several words (a list), or one.
    """

    says: str
    neutral: tuple[Any, ...] = ()
    moot: bool = False
    becomes: Callable[[Any], Mapping[str, Any]] | None = None
    short: str | None = None

    @property
    def fate(self) -> str:
        """In a word or two, for readers."""
        if self.becomes is not None:
            return "read as"
        return "no effect" if self.moot else "refused"

    @property
    def is_flag(self) -> bool:
        """Whether the command line takes it without a value."""
        return bool(self.neutral) and isinstance(self.neutral[0], bool)

    @property
    def is_list(self) -> bool:
        """Whether the command line takes several words."""
        return bool(self.neutral) and isinstance(self.neutral[0], list)

    def options(self, name: str, value: Any) -> Mapping[str, Any]:
        """The options that a value stands for, often none.

        Raises:
            ConfigError: it asks for what is not built.
        """
        if value is None or _word(value) in {"none", *map(_word, self.neutral)}:
            return {}
        if self.becomes is not None:
            return self.becomes(value)
        if not self.moot:
            raise ConfigError(f"{name}={value!r} is refused: {self.says}")
        logger.warning("%s=%r has no effect: %s", name, value, self.says)
        return {}


def _word(value: Any) -> str:
    """A value as it would be written: 0, 0.0 and "0" are one, as are true and True, and whatever is empty."""
    if isinstance(value, (list, tuple, set, Mapping)):
        return json.dumps(value, default=str) if value else ""
    text = str(value).strip().lower()
    try:
        return f"{float(text):g}"
    except ValueError:
        return "" if text in ("{}", "[]") else text


def _rows(says: str, *, moot: bool, neutral: Mapping[str, Any]) -> Iterator[tuple[str, Name]]:
    for name, values in neutral.items():
        yield name, Name(says, values if isinstance(values, tuple) else (values,), moot)


def refused(says: str, **neutral: Any) -> Iterator[tuple[str, Name]]:
    """Names of which other values than `neutral` ask for what is not built."""
    return _rows(says, moot=False, neutral=neutral)


def moot(says: str, **neutral: Any) -> Iterator[tuple[str, Name]]:
    """Names that have nothing to act on, whatever their value."""
    return _rows(says, moot=True, neutral=neutral)


def same_as(option: str) -> Callable[[Any], Mapping[str, Any]]:
    """Another name of an option."""
    return lambda value: {option: value}


def set_to(option: str, setting: Any) -> Callable[[Any], Mapping[str, Any]]:
    """A flag that gives an option one certain value."""
    return lambda _: {option: setting}


def key_of(option: str, key: str) -> Callable[[Any], Mapping[str, Any]]:
    """A value that is one key of an option that maps names to values. The command line leaves JSON and numbers as text."""

    def become(value: Any) -> Mapping[str, Any]:
        try:
            read = json.loads(value) if isinstance(value, str) else value
        except json.JSONDecodeError:
            read = value
        return {option: {key: read}}

    return become


def as_mapping(name: str, value: Any) -> Mapping[str, Any]:
    """An option that maps names to values, which may be written as JSON.

    Raises:
        ConfigError: it is no such mapping.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{name} must be a JSON object: {error}") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must map names to values, got {value!r}")
    return dict(value)
