"""From items to launches of an encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from buckets import Bucket
from buckets.grid import LAUNCH_TOKENS
from jaxengine.contract.media import MediaFacts, MediaItem

STEP_PATCHES = 8192
"""Encoded before a step, unless the options say otherwise: readers of texts wait for it (benchmarks/replay_pictures)."""


def patches_of_step(asked: int | None, facts: MediaFacts) -> int:
    """Most patches that are encoded before a step: as many as were asked for."""
    return min(facts.max_patches, STEP_PATCHES) if asked is None else asked


def bucket_for(rows: int, patches: int, buckets: Sequence[Bucket]) -> Bucket | None:
    """The smallest bucket that holds so much; None: none does."""
    fitting = (bucket for bucket in buckets if bucket.batch >= rows and bucket.tokens >= patches)
    return min(fitting, key=lambda bucket: (bucket.tokens, bucket.batch), default=None)


def cut(items: Sequence[MediaItem], buckets: Sequence[Bucket]) -> Iterator[tuple[Bucket, range]]:
    """Cut a row of items, each of which some bucket holds, into the launches that cost least: a bucket, and which it takes.

    A launch costs its bucket's patches, and a little for itself.
    """
    cheapest = [0]
    last: list[tuple[Bucket, int]] = []  # of the first n items: the last launch, and where it begins
    for end in range(1, len(items) + 1):
        rows = patches = 0
        found: tuple[int, Bucket, int] | None = None
        for start in reversed(range(end)):
            rows += items[start].num_rows
            patches += len(items[start].patches)
            bucket = bucket_for(rows, patches, buckets)
            if bucket is None:
                break
            cost = cheapest[start] + bucket.tokens + LAUNCH_TOKENS
            if found is None or cost <= found[0]:
                found = cost, bucket, start
        assert found is not None, "an item is encoded that no bucket holds"
        cost, bucket, start = found
        cheapest.append(cost)
        last.append((bucket, start))
    cuts = []
    end = len(items)
    while end:
        bucket, start = last[end - 1]
        cuts.append((bucket, range(start, end)))
        end = start
    return reversed(cuts)
