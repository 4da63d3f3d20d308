"""The default grid: a ladder of token places, chosen by replaying recorded traffic (`benchmarks/replay.py`).

Up to `max_num_seqs` places each has a row of its own, so that a few sequences that decode pay for few rows. Beyond, a bucket has
a row for every sequence that may run, and so its places are a multiple of them:

    accelerators, 256 sequences, 2,048 tokens    8x1 32x1 88x1 256x1 256x2 256x3 256x4 256x6 256x8
    CPU, 64 sequences, 512 tokens                1x1 2x1 4x1 8x1 16x1 32x1 64x1 64x2 64x3 64x5 64x8

A step of a few places lasts as long as one of `Limits.free_tokens`, so where these are many the lower part is coarse. Which
places there are matters little as long as work waits; 16 buckets are no better than 9.

`benchmarks/replay.py` has what that saves against rectangles of rows with prompts and decoding in two launches.
"""

from __future__ import annotations

from buckets.grid import Grid
from buckets.limits import Limits
from buckets.ranges import exponential_range
from buckets.shape import Bucket

MATRIX_ROWS = 8
"""Where tokens are free, no bucket has fewer rows: XLA:TPU multiplies fewer on the vector unit."""
COARSE, FINE = (4, 6), (7, 5)
"""Most buckets with as many rows as places, and most with a row for every sequence, where tokens are free and where they are not.
One is both."""


def plan_tokens(limits: Limits) -> Grid:
    """At most 9 buckets where tokens are free, else 11; the largest has room for all tokens of a step."""
    free = limits.free_tokens > 1
    least, ratio, (most_below, most_above) = (MATRIX_ROWS, 4, COARSE) if free else (1, 2, FINE)
    rows = max(limits.max_rows, least)
    steps = next(count for count in range(rows) if least * ratio**count >= rows)
    below = exponential_range(least, least, rows, min(most_below, steps + 1))
    top = -(-max(limits.max_tokens, rows) // rows) * rows
    above = exponential_range(rows, rows, top, most_above)
    return Grid([*(Bucket(places, 1) for places in below), *(Bucket(rows, places // rows) for places in above)])
