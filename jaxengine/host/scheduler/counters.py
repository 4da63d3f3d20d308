"""What is counted of a scheduler: running totals of its steps, and how its requests and pages stand."""

from __future__ import annotations

from buckets import Bucket
from jaxengine.contract.metrics import NO_ENCODERS, SchedulerStats, ShapeCount
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.scheduler.placement import Placement


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

    def stats(self, placement: Placement, ledger: Ledger) -> SchedulerStats:
        """These, and the counts of sequences and pages as of now."""
        prefix, fetches = ledger.stats, placement.pages.fetches
        adapters, encoders, asking = placement.slots.adapters, placement.slots.encoders, fetches.num_asking
        return SchedulerStats(
            num_running=len(placement.running),
            num_waiting=len(placement.waiting) + len(fetches),
            num_waiting_tokens=placement.waiting.num_tokens,
            num_preemptions=placement.num_preemptions,
            kv_cache_usage=ledger.pools.usage,
            prefix_cache_queries=prefix.queries,
            prefix_cache_hits=prefix.hits,
            external_prefix_cache_hits=prefix.external_hits,
            shapes=dict(self.shapes),
            num_held_pages=ledger.pools.num_held,
            num_cached_pages=ledger.pools.num_idle,
            num_free_pages=ledger.pools.num_free,
            num_asking=asking,
            num_loading=len(fetches) - asking,
            num_arriving=len(placement.pages.arrivals),
            running_adapters=() if adapters is None else adapters.running,
            waiting_adapters=() if adapters is None else adapters.waiting,
            encoders=NO_ENCODERS if encoders is None else encoders.stats,
        )
