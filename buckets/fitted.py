"""A grid planned from traffic: the few buckets in which the steps of a replay would have taken the least time.

The replay runs on `candidates`, a ladder much finer than anyone would compile, and says how often each of its buckets was taken.
The buckets of such a ladder lie in one order, larger ones holding whatever smaller ones hold. So leaving some out moves their
steps to the next larger one, and which to keep is found exactly, by dynamic programming.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from buckets.grid import Grid
from buckets.limits import Limits
from buckets.shape import Bucket
from buckets.tokens import MATRIX_ROWS

MOST_BELOW, MOST_ABOVE = 32, 32
"""Candidates with as many rows as places, and with a row for every sequence."""


def candidates(limits: Limits) -> Grid:
    """The ladder to choose from, between the bounds of the default grid (`buckets/tokens.py`)."""
    least = MATRIX_ROWS if limits.free_tokens > 1 else 1
    rows = max(limits.max_rows, least)
    step = least * math.ceil(rows / least / MOST_BELOW)
    most = -(-max(limits.max_tokens, rows) // rows)
    seqs = {*range(1, most, math.ceil(most / MOST_ABOVE)), most}
    return Grid([*(Bucket(places, 1) for places in range(step, rows, step)), *(Bucket(rows, seq) for seq in seqs)])


def fitted(ladder: Grid, taken: Mapping[Bucket, int], count: int) -> Grid:
    """At most `count` buckets of `ladder`, the largest among them, in which the steps `taken` cost least by the ladder's costs.

    Raises:
        ValueError: `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"a grid has one bucket at least, not {count}")
    ordered = ladder.buckets[::-1]
    steps = [0]  # of the buckets before each
    for bucket in ordered:
        steps.append(steps[-1] + taken.get(bucket, 0))
    # The least cost of all steps up to each bucket with so many kept, the bucket itself among them, and which they are.
    best: dict[int, tuple[float, tuple[int, ...]]] = {
        last: (steps[last + 1] * ladder.costs[bucket], (last,)) for last, bucket in enumerate(ordered)
    }
    found = best[len(ordered) - 1]
    for _ in range(count - 1):
        best = {
            last: min(
                (cost + (steps[last + 1] - steps[before + 1]) * ladder.costs[bucket], (*kept, last))
                for before, (cost, kept) in best.items()
                if before < last
            )
            for last, bucket in enumerate(ordered)
            if any(before < last for before in best)
        }
        if len(ordered) - 1 not in best:
            break
        if best[len(ordered) - 1][0] < found[0]:  # one that gains nothing is left out
            found = best[len(ordered) - 1]
    return Grid((ordered[number] for number in found[1]), ladder.costs)
