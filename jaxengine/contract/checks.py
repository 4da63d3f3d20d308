"""Whether names and values are those of a field: errors name the field, what is allowed, and the value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING

from jaxengine.errors import RequestError, UnsupportedError, nearest
from jaxengine.options.names import reasons

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def check_names(kind: type[DataclassInstance], names: Iterable[str], what: str, *groups: str) -> None:
    """Accept the names of the fields of a dataclass, each of them a `what`.

    Raises:
        UnsupportedError: a name that one of the `groups` of known names says is not built.
        RequestError: one that nobody knows.
    """
    known = {field.name for field in fields(kind)}
    for name in names:
        if name in known:
            continue
        for group in groups:
            if (reason := reasons(group).get(name)) is not None:
                raise UnsupportedError(f"{what} {name!r} is not supported: {reason}", param=name)
        raise RequestError(f"unknown {what} {name!r}.{nearest(name, known)}", param=name)


def check_boolean(name: str, value: object) -> None:
    """Accept True and False.

    Raises:
        RequestError: it is neither.
    """
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be True or False, got {value!r}", param=name)


def check_integer(name: str, value: object, *, low: float, high: float = math.inf, besides: int | None = None) -> None:
    """Accept an integer from `low` to `high`, and `besides`.

    Raises:
        RequestError: it is none, or beyond the range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not (low <= value <= high or value == besides):
        other = "" if besides is None else f", or {besides}"
        raise RequestError(f"{name} must be {integers(low, high)}{other}, got {value!r}", param=name)


def check_real(
    name: str, value: object, *, low: float = -math.inf, high: float = math.inf, low_open: bool = False
) -> None:
    """Accept a finite number from `low` to `high`, `low` itself left out if `low_open`.

    Raises:
        RequestError: it is none, or beyond the range.
    """
    if is_finite(value) and low <= value <= high and not (low_open and value == low):  # type: ignore[operator]
        return
    raise RequestError(f"{name} must be {reals(low, high, low_open=low_open)}, got {value!r}", param=name)


def integers(low: float, high: float) -> str:
    """What `check_integer` accepts, in words."""
    return f"an integer of at least {low}" if high == math.inf else f"an integer from {low} to {high}"


def reals(low: float, high: float, *, low_open: bool) -> str:
    """What `check_real` accepts, in words."""
    if high < math.inf:
        return f"in {'(' if low_open else '['}{low}, {high}]"
    return "finite" if low == -math.inf else f"{'above' if low_open else 'at least'} {low} and finite"


def is_finite(value: object) -> bool:
    """Whether it is a number, of a size that a float can have."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond any float
        return False
