"""What a step of each bucket costs, in seconds: estimated before anything ran, corrected by what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate

from buckets.shape import Bucket

Costs = Mapping[Bucket, float]


def estimated(buckets: Iterable[Bucket], *, floor_s: float, token_s: float, launch_s: float) -> dict[Bucket, float]:
    """`launch_s` and the longer of reading the weights, `floor_s`, and computing every token place, `token_s` each."""
    return {bucket: launch_s + max(floor_s, bucket.tokens * token_s) for bucket in buckets}


def corrected(costs: Costs, seconds: Costs) -> dict[Bucket, float]:
    """The table `costs` with what was measured, for the buckets of `costs`.

    Other work on the machine only makes a step longer. So one that was measured longer than a step of a larger bucket (more
    places, or more rows for the same places) takes at most what that did: no bucket is cheaper than a smaller one. A bucket that
    was not measured keeps its estimate, scaled as the measured one nearest in token places was, between those around it.

    Raises:
        ValueError: a time that is not positive.
    """
    bad = [f"{bucket} {value}" for bucket, value in seconds.items() if not 0 < value < math.inf]
    if bad:
        raise ValueError(f"a bucket takes a positive number of seconds; got {', '.join(bad)}")
    ordered = sorted(costs, key=lambda bucket: (bucket.tokens, bucket.batch))
    known = [bucket for bucket in ordered if bucket in seconds]
    if not known:
        return dict(costs)
    falling = accumulate((seconds.get(bucket, math.inf) for bucket in reversed(ordered)), min)
    most = dict(zip(reversed(ordered), falling, strict=True))  # what a bucket took, or a larger one if that took less

    def cost(bucket: Bucket) -> float:
        near = min(known, key=lambda other: (other != bucket, abs(other.tokens - bucket.tokens)))
        return min(most[bucket], costs[bucket] * most[near] / costs[near])

    return dict(zip(ordered, accumulate(map(cost, ordered), max), strict=True))
