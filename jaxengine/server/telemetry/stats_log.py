"""A line on what the engine does, every so often, in the words of vLLM's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from jaxengine.server.telemetry.tally import EngineNumbers

logger = logging.getLogger("jaxengine")

Clock = Callable[[], float]


class StatsLog:
    """Writes of each engine rates since the line before, and counts of the moment.

    Args:
        engines: their numbers of the moment.
        clock: seconds.
    """

    def __init__(self, engines: Callable[[], Sequence[EngineNumbers]], *, clock: Clock = time.monotonic) -> None:
        self._engines = engines
        self._clock = clock
        self._last = {engine.rank: self._read(engine) for engine in engines()}
        self._idle = set(self._last)

    async def run(self, interval_s: float) -> None:
        """Write lines every `interval_s` seconds until cancelled; 0 is never."""
        while interval_s:
            await asyncio.sleep(interval_s)
            self.write()

    def write(self) -> None:
        """Write a line for each; at debug level when nothing has happened since the last one and nothing had before."""
        for engine in self._engines():
            self._write(engine)

    def _write(self, engine: EngineNumbers) -> None:
        rank, stats, now = engine.rank, engine.scheduler, self._read(engine)
        last = self._last[rank]
        # Counts of an engine that was started again begin with nothing.
        since = {name: value - last[name] if value >= last[name] else value for name, value in now.items()}
        seconds, prompt, generated = max(since["time"], 1e-9), since["prompt"], since["generated"]
        idle = not (prompt or generated or stats.num_running or stats.num_waiting)
        logger.log(
            logging.DEBUG if idle and rank in self._idle else logging.INFO,
            "Engine %03d: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, "
            "Running: %d reqs, Waiting: %d reqs, KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%%s",
            rank,
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
        self._last[rank] = now
        (self._idle.add if idle else self._idle.discard)(rank)

    def _read(self, engine: EngineNumbers) -> Mapping[str, float]:
        """Counts since the start, and when they were read."""
        return {
            "time": self._clock(),
            "prompt": engine.tally.prompt_tokens,
            "generated": engine.tally.generated_tokens,
            "queries": engine.scheduler.prefix_cache_queries,
            "hits": engine.scheduler.prefix_cache_hits,
            "preemptions": engine.scheduler.num_preemptions,
        }
