"""Running totals of what the scheduler has done."""

from __future__ import annotations

from buckets import Bucket
from jaxengine.contract.metrics import ShapeCount


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
