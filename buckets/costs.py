"""What a step of each bucket costs, in seconds: estimated before anything ran, corrected by what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from buckets.shape import Bucket

Costs = Mapping[Bucket, float]


def estimated(buckets: Iterable[Bucket], *, floor_s: float, token_s: float, launch_s: float) -> dict[Bucket, float]:
    """`launch_s` and the longer of reading the weights, `floor_s`, and computing every token place, `token_s` each."""
    return {bucket: launch_s + max(floor_s, bucket.tokens * token_s) for bucket in buckets}


def corrected(costs: Costs, seconds: Costs) -> dict[Bucket, float]:
    """The table `costs` with what was measured, for the buckets of `costs`.

    A bucket that was not measured keeps its estimate, scaled as the measured one nearest in token places was. Where noise made a
    bucket cheaper than one with fewer places, or fewer rows for the same places, both get their mean: no bucket is cheaper than a
    smaller one.

    Raises:
        ValueError: a time that is not positive.
    """
    bad = [f"{bucket} {value}" for bucket, value in seconds.items() if not 0 < value < math.inf]
    if bad:
        raise ValueError(f"a bucket takes a positive number of seconds; got {', '.join(bad)}")
    known = [bucket for bucket in costs if bucket in seconds]
    if not known:
        return dict(costs)

    def cost(bucket: Bucket) -> float:
        near = min(known, key=lambda other: (other != bucket, abs(other.tokens - bucket.tokens)))
        return costs[bucket] * seconds[near] / costs[near]

    ordered = sorted(costs, key=lambda bucket: (bucket.tokens, bucket.batch))
    return dict(zip(ordered, _rising([cost(bucket) for bucket in ordered]), strict=True))


def _rising(values: Iterable[float]) -> list[float]:
    """The nearest values, by least squares, none of which is below the one before: neighbours that fall are averaged."""
    runs: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while runs and runs[-1][0] > mean:
            before, number = runs.pop()
            mean, count = (before * number + mean * count) / (number + count), number + count
        runs.append((mean, count))
    return [mean for mean, count in runs for _ in range(count)]
