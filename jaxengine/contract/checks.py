"""Whether a value is a number within its range: errors name the field, what is allowed, and the value."""

from __future__ import annotations

import math

from jaxengine.errors import RequestError


def check_integer(name: str, value: object, *, low: float, high: float = math.inf) -> None:
    """Accept an integer from `low` to `high`.

    Raises:
        RequestError: it is none, or beyond the range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name} must be {integers(low, high)}, got {value!r}", param=name)


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
