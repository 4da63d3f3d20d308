"""A strict reader of `config.json`: nothing is guessed, and nothing is ignored that no one looked at.

A family reads required keys, and keys whose default is the one that Hugging Face documents, written beside the read. Keys that
were neither read nor named as ignored raise: a variant that we do not know computes something else than we would.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from jaxengine.device.models.config.ignored import Ignored
from jaxengine.errors import ConfigError, nearest

T = TypeVar("T", bool, int, float, str)


class ConfigReader:
    """One JSON object, and the record of what was read of it."""

    def __init__(self, values: Mapping[str, Any], *, where: str = "config.json", nulls: Collection[str] = ()) -> None:
        """`nulls` are keys that are given as null and count as missing, but for `nullable`."""
        self._values = values
        self._nulls = nulls
        self._where = where
        self._read: set[str] = set()
        self._sections: dict[str, tuple[ConfigReader, Mapping[str, Ignored]]] = {}

    def required(self, key: str, kind: type[T]) -> T:
        """The value of a key that must be there.

        Raises:
            ConfigError: it is missing, null or of another type.
        """
        if key not in self._values:
            raise ConfigError(
                f"{self._where} has no {key!r}, which the model cannot do without{nearest(key, self._values)}"
            )
        return self._typed(key, kind)

    def size(self, key: str) -> int:
        """A required extent: an integer of at least 1."""
        return self._positive(key, self.required(key, int))

    def optional(self, key: str, default: T, kind: type[T]) -> T:
        """The value of a key, or Hugging Face's documented default where it is missing."""
        self._read.add(key)
        return self._typed(key, kind) if key in self._values else default

    def optional_size(self, key: str, default: int) -> int:
        """As `optional`, for an extent."""
        return self._positive(key, self.optional(key, default, int))

    def nullable(self, key: str, default: T | None, kind: type[T]) -> T | None:
        """As `optional`, for a key that may be null."""
        if self._values.get(key) is None:
            self._read.add(key)
            return None if key in self._values or key in self._nulls else default
        return self._typed(key, kind)

    def nullable_size(self, key: str, default: int | None) -> int | None:
        """As `nullable`, for an extent."""
        value = self.nullable(key, default, int)
        return None if value is None else self._positive(key, value)

    def choice(self, key: str, default: str | None, allowed: Mapping[str, Any] | tuple[str, ...]) -> str:
        """One of the `allowed` names. Without a default the key is required."""
        value = self.required(key, str) if default is None else self.optional(key, default, str)
        if value not in allowed:
            raise ConfigError(
                f"{self._where}: {key}={value!r} is not built; known are {', '.join(allowed)}.{nearest(value, allowed)}"
            )
        return value

    def raw(self, key: str, default: Any = None) -> Any:
        """A value of any type."""
        self._read.add(key)
        return self._values.get(key, default)

    def section(
        self,
        key: str,
        *,
        outer: Sequence[str] = (),
        ignored: Mapping[str, Ignored] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> ConfigReader | None:
        """A nested object, or None where it is missing or null. Keys that are null in it count as missing, but for `nullable`.

        The keys `outer` hold for it where they stand outside of it; `ignored` may be left unread in it; `defaults` are what its
        class documents for keys that it lacks. Asked for again it is
        the same reader.
        """
        self._read.add(key)
        if key in self._sections:
            return self._sections[key][0]
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self._where}: {key} must be an object, got {value!r}")
        given = {name: self.raw(name) for name in outer}
        present = {
            name: item for values in (defaults or {}, value, given) for name, item in values.items() if item is not None
        }
        nulls = value.keys() - present.keys()
        section = ConfigReader(present, where=f"{self._where}: {key}", nulls=nulls)
        self._sections[key] = (section, ignored or {})
        return section

    def finish(self, ignored: Mapping[str, Ignored], *, family: str) -> None:
        """Refuse what was not read.

        Raises:
            ConfigError: listing every key that is unknown to `family`, or has a value that may not be ignored.
        """
        problems = self._unread(ignored)
        if problems:
            raise ConfigError(
                f"{family} would compute something else than this configuration asks for:\n  "
                + "\n  ".join(problems)
                + "\nUse a checkpoint without them, or change the values with hf_overrides."
            )

    def _unread(self, ignored: Mapping[str, Ignored]) -> list[str]:
        problems = []
        for key in sorted(self._values.keys() - self._read):
            value = self._values[key]
            entry = ignored.get(key)
            if entry is None:
                hint = nearest(key, self._read | ignored.keys())
                problems.append(f"{self._where}: {key}={value!r} is a key that it does not read.{hint}")
            elif entry.allowed is not None and value not in entry.allowed:
                allowed = " or ".join(repr(item) for item in entry.allowed)
                problems.append(f"{self._where}: {key}={value!r} is not built, only {allowed} ({entry.reason})")
        for section, unread in self._sections.values():
            problems += section._unread(unread)
        return problems

    def _typed(self, key: str, kind: type[T]) -> T:
        self._read.add(key)
        value = self._values[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return kind(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"{self._where}: {key} must be of type {kind.__name__}, got {value!r}")
        return value

    def _positive(self, key: str, value: int) -> int:
        if value < 1:
            raise ConfigError(f"{self._where}: {key} must be at least 1, got {value}")
        return value


def apply_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with `overrides` merged in, object by object; a value that is not an object replaces the old one."""
    merged = dict(config)
    for key, value in overrides.items():
        old = merged.get(key)
        merged[key] = apply_overrides(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
