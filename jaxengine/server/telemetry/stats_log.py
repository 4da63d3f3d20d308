"""A line on what the engine does, every so often, in the words of vLLM's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from jaxengine.contract.metrics import SchedulerStats
from jaxengine.server.telemetry.tally import Tally

logger = logging.getLogger("jaxengine")

Clock = Callable[[], float]


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
        now = self._read(stats)
        since = {name: value - self._last[name] for name, value in now.items()}
        seconds, prompt, generated = max(since["time"], 1e-9), since["prompt"], since["generated"]
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
            since["hits"] / since["queries"] * 100 if since["queries"] else 0.0,
            f", Preemptions: {stats.num_preemptions}" if stats.num_preemptions else "",
        )
        if since["preemptions"]:
            logger.warning(
                "%d sequences were preempted for lack of KV cache and are computed again (%d so far). Raise memory_utilization "
                "or tensor_parallel_size, or lower max_num_seqs, if that goes on",
                since["preemptions"],
                now["preemptions"],
            )
        self._last, self._was_idle = now, idle

    def _read(self, stats: SchedulerStats) -> Mapping[str, float]:
        """Counts since the start, and when they were read."""
        return {
            "time": self._clock(),
            "prompt": self._tally.prompt_tokens,
            "generated": self._tally.generated_tokens,
            "queries": stats.prefix_cache_queries,
            "hits": stats.prefix_cache_hits,
            "preemptions": stats.num_preemptions,
        }
