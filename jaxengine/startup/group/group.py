"""What hosts that share an engine do together while it starts. One that is alone does the same, with itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from jaxengine.errors import ConfigError

Values = Mapping[int, Any]
"""What hosts have told, by their ranks."""


class Group(Protocol):
    """The hosts of one engine, from 0 to `size - 1`; this is `rank`. All of them ask the same things in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather(self, what: str, value: Any) -> Values:
        """The first host learns what all have, which must be fit for JSON; the others learn nothing."""
        ...

    def share(self, what: str, value: Any) -> Any:
        """What the first host has, whatever the others give."""
        ...


class Alone:
    """The group of one host."""

    rank, size = 0, 1

    def gather(self, what: str, value: Any) -> Values:
        return {0: value}

    def share(self, what: str, value: Any) -> Any:
        return value


def agree(group: Group, what: str, value: Any, explain: Callable[[Any, Any], str | None]) -> None:
    """Go on if `explain(first, other)` finds nothing to say of any host's value.

    Raises:
        ConfigError: it does, on every host alike.
    """
    values = group.gather(what, value)
    found = {rank: explain(values[0], values[rank]) for rank in sorted(values) if rank}
    problems = [f"host {rank}: {text}" for rank, text in found.items() if text is not None]
    verdict = group.share(f"verdict on {what}", "; ".join(problems))
    if verdict:
        raise ConfigError(f"the hosts of this engine differ in {what}. {verdict}")


def least(group: Group, what: str, number: int) -> int:
    """The least of all hosts' numbers."""
    return int(group.share(what, min(group.gather(what, number).values(), default=number)))


def differences(first: Mapping[str, Any], other: Mapping[str, Any], *, most: int = 4) -> str | None:
    """Which named values are not equal, the first few of them; None where all are."""
    names = [name for name in sorted({*first, *other}) if first.get(name) != other.get(name)]
    if not names:
        return None
    told = [f"{name} is {_short(other.get(name))} there and {_short(first.get(name))} on host 0" for name in names]
    return ", ".join(told[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
