"""What the scheduler has done so far, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from buckets import Bucket


@dataclass(frozen=True, slots=True)
class ShapeCount:
    """Steps that ran in one shape, their real tokens, and their token places with padding."""

    steps: int = 0
    tokens: int = 0
    padded_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """A snapshot: what runs and waits now, and what happened since the start.

    `num_running`, `num_waiting` and `num_preemptions` count sequences, `num_waiting_tokens` the tokens of those that wait.
    `kv_cache_usage` is the share of pages that sequences hold, 0 to 1. `prefix_cache_queries` and `_hits` are in tokens.
    """

    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    num_preemptions: int
    kv_cache_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    shapes: Mapping[Bucket, ShapeCount]

    @property
    def num_tokens(self) -> int:
        """Real tokens computed, of all shapes."""
        return sum(count.tokens for count in self.shapes.values())

    @property
    def num_padded_tokens(self) -> int:
        """Token places computed, padding included, of all shapes."""
        return sum(count.padded_tokens for count in self.shapes.values())


class Counters:
    """Running totals; `shapes` is as in `SchedulerStats`."""

    def __init__(self) -> None:
        self.shapes: dict[Bucket, ShapeCount] = {}

    def record(self, bucket: Bucket, num_tokens: int) -> None:
        """Count one step."""
        count = self.shapes.get(bucket, ShapeCount())
        self.shapes[bucket] = ShapeCount(
            count.steps + 1, count.tokens + num_tokens, count.padded_tokens + bucket.tokens
        )
