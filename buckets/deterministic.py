"""The grid of deterministic mode."""

from __future__ import annotations

from buckets.grid import Grid
from buckets.limits import Limits
from buckets.shape import Bucket

PLACES = 512
"""Places of the one bucket: a large matrix already, and not too much for a few tokens."""


def plan_deterministic(limits: Limits, *, least_share: int = 1) -> Grid:
    """Exactly one bucket: whatever a token's company, the same program computes it.

    It has a row for every sequence, and about as many places again for prompts where the token budget allows.

    Args:
        limits: what the grid is for.
        least_share: tokens of a prompt that must fit beside all other sequences' rows, or all of it, whatever the token budget.
    """
    rows = limits.max_rows
    places = min(max(PLACES, 2 * rows), limits.max_tokens)
    needed = rows - 1 + min(least_share, limits.max_model_len)
    return Grid([Bucket(rows, max(places // rows, -(-needed // rows)))])
