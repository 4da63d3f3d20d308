"""What a person watches from second to second: the last step's shape, and waits in finer steps than vLLM's histograms have."""

from __future__ import annotations

import math
from collections.abc import Sequence

from buckets import Bucket
from jaxengine.contract.metrics import FinishedRequest, FinishedSequence, StepStats
from jaxengine.server.telemetry.tally import Distribution

FINE = tuple(1e-4 * 1.15**power for power in range(100))
"""Seconds, from 0.1 ms to 100 s, each bound 15 % above the one before."""


class Pulse:
    """Listens to an engine on the event loop. `latest` is the shape of the last step, if there was one."""

    def __init__(self) -> None:
        self.latest: Bucket | None = None
        self.first_token = Distribution(FINE)
        self.between_tokens = Distribution(FINE)

    def on_step(self, stats: StepStats) -> None:
        """Add a step."""
        self.latest = stats.shape
        for first in stats.first_tokens:
            self.first_token.add(first.seconds)
        for seconds, times in stats.gaps.items():
            self.between_tokens.add(seconds, times)

    def on_finished(self, sequence: FinishedSequence, request: FinishedRequest | None) -> None:
        """The end of a sequence is nothing to be seen here."""

    def on_lost(self, finish_reason: str, num_sequences: int) -> None:
        """Nor is that of one that was given up."""


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Seconds that `share` of the values do not exceed, off by half a step of `FINE` at most. None where there are none."""
    rank, seen = math.ceil(share * sum(counts)), 0
    if not rank:
        return None
    for bound, count in zip(FINE, counts, strict=False):
        seen += count
        if seen >= rank:
            return bound / math.sqrt(FINE[1] / FINE[0])
    return FINE[-1]
