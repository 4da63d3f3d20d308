"""The number sequences that bucket grids are made of: the linear ramp-up rule and the exponential rule."""

from __future__ import annotations

import math

Range = tuple[int, ...]
"""A range as an option has it: `(min, step, max)` for the linear planner, `(min, step, max, count)` for the exponential one."""


def check_lengths(count: int, **ranges: Range | None) -> None:
    """Refuse ranges, by the names of their options, that are not `count` numbers.

    Raises:
        ValueError: naming the first.
    """
    for name, value in ranges.items():
        if value is not None and len(value) != count:
            form = "min,step,max" if count == 3 else "min,step,max,count"
            raise ValueError(f"{name} must be {count} numbers ({form}) for this planner, got {value}")


def linear_range(minimum: int, step: int, maximum: int) -> tuple[int, ...]:
    """Double from `minimum` until `step`, then go on in steps of `step`, never beyond `maximum`.

        (2, 32, 64)       2 4 8 16 | 32 64
        (128, 128, 512)            | 128 256 384 512

    A minimum of 0 means 0 itself and then `step`, `2 * step`, and so on.

    Raises:
        ValueError: a negative minimum, a step below 1, or a maximum below the minimum.
    """
    _check(minimum, step, maximum)
    if minimum == 0:
        return (0, *range(step, maximum + 1, step))
    ramp = []
    value = minimum
    while value < step and value <= maximum:
        ramp.append(value)
        value *= 2
    return (*ramp, *(value for value in range(step, maximum + 1, step) if value >= minimum))


def exponential_range(minimum: int, step: int, maximum: int, limit: int) -> tuple[int, ...]:
    """At most `limit` values from `minimum` to `maximum` in equal ratios, each rounded up to a multiple of `step`.

        (128, 128, 2048, 10)    128 256 384 512 640 896 1152 1536 2048
        (1, 2, 256, 9)          1 | 2 4 8 14 24 42 78 140 256

    A minimum of 0 or 1 is kept as it is, in front of a sequence that starts at `step`. The last value is `maximum` itself.

    Raises:
        ValueError: a negative minimum, a step below 1, a maximum below the minimum, or a limit below 1.
    """
    _check(minimum, step, maximum)
    if limit < 1:
        raise ValueError(f"an exponential range needs a limit of at least 1 value, got {limit}")
    origin = {minimum} if minimum in (0, 1) else set()
    first = step if origin else minimum
    if first >= maximum or limit == 1:
        return tuple(sorted(origin | {maximum}))
    ratios = (index / (limit - 1) for index in range(limit))
    # Rounding to nine digits first keeps 128 * (2048 / 128) ** 0.5 from landing a hair above 512.
    values = {math.ceil(round(first * (maximum / first) ** ratio / step, 9)) * step for ratio in ratios}
    return tuple(sorted(origin | {min(value, maximum) for value in values}))


def pad_to_range(value: int, minimum: int, step: int) -> int:
    """The linear rule's bucket for a live `value`: 3 becomes 4 with (1, 32), 412 becomes 512 with (128, 128).

    There is no maximum: past the end of the planned range the rule pads all the same (1100 becomes 1152 with (128, 128)).

    Raises:
        ValueError: a minimum or step below 1.
    """
    if minimum < 1 or step < 1:
        raise ValueError(f"padding needs a minimum and a step of at least 1, got {minimum} and {step}")
    doubled = minimum
    while doubled < value:
        doubled *= 2
    return max(minimum, min(-(-value // step) * step, doubled))


def _check(minimum: int, step: int, maximum: int) -> None:
    if minimum < 0 or step < 1 or maximum < max(minimum, 1):
        raise ValueError(
            f"a range is (min, step, max) with 0 <= min <= max, step >= 1 and max >= 1; got ({minimum}, {step}, {maximum})"
        )
