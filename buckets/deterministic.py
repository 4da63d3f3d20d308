"""The grid of deterministic mode."""

from __future__ import annotations

from buckets.grid import Grid
from buckets.limits import Limits
from buckets.shape import Bucket

PLACES = 512
"""Places of the one bucket: a large matrix already, and not too much for a few tokens."""


def plan_deterministic(limits: Limits) -> Grid:
    """Exactly one bucket: whatever a token's company, the same program computes it.

    It has a row for every sequence, and about as many places again for prompts where the token budget allows.
    """
    rows = limits.max_rows
    places = min(max(PLACES, 2 * rows), limits.max_tokens)
    return Grid([Bucket(rows, max(1, places // rows))])
