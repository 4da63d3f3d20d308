"""A line on what the engine does, every so often, in the words of vLLM's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from jaxengine.contract.metrics import SchedulerStats
from jaxengine.server.telemetry.tally import Tally

logger = logging.getLogger("jaxengine")

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class _Reading:
    """Counts since the start, and when they were read."""

    time: float
    prompt_tokens: int
    generated_tokens: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int


class StatsLog:
    """Writes rates since the line before, and counts of the moment.

    Args:
        stats: the scheduler's counts as of the last step.
        clock: seconds.
    """

    def __init__(self, tally: Tally, stats: Callable[[], SchedulerStats], *, clock: Clock = time.monotonic) -> None:
        self._tally = tally
        self._stats = stats
        self._clock = clock
        self._last = self._read(stats())
        self._was_idle = True

    async def run(self, interval_s: float) -> None:
        """Write a line every `interval_s` seconds until cancelled; 0 is never."""
        while interval_s:
            await asyncio.sleep(interval_s)
            self.write()

    def write(self) -> None:
        """Write one line; at debug level when nothing has happened since the last one and nothing had before."""
        stats = self._stats()
        last, now = self._last, self._read(stats)
        seconds = max(now.time - last.time, 1e-9)
        prompt, generated = now.prompt_tokens - last.prompt_tokens, now.generated_tokens - last.generated_tokens
        queries, hits = now.prefix_queries - last.prefix_queries, now.prefix_hits - last.prefix_hits
        idle = not (prompt or generated or stats.num_running or stats.num_waiting)
        logger.log(
            logging.DEBUG if idle and self._was_idle else logging.INFO,
            "Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, "
            "Running: %d reqs, Waiting: %d reqs, KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%%s",
            prompt / seconds,
            generated / seconds,
            stats.num_running,
            stats.num_waiting,
            stats.kv_cache_usage * 100,
            hits / queries * 100 if queries else 0.0,
            f", Preemptions: {stats.num_preemptions}" if stats.num_preemptions else "",
        )
        if now.preemptions > last.preemptions:
            logger.warning(
                "%d sequences were preempted for lack of KV cache and are computed again (%d so far). Raise memory_utilization "
                "or tensor_parallel_size, or lower max_num_seqs, if that goes on",
                now.preemptions - last.preemptions,
                now.preemptions,
            )
        self._last, self._was_idle = now, idle

    def _read(self, stats: SchedulerStats) -> _Reading:
        tally = self._tally
        return _Reading(
            self._clock(),
            tally.prompt_tokens,
            tally.generated_tokens,
            stats.prefix_cache_queries,
            stats.prefix_cache_hits,
            stats.num_preemptions,
        )
