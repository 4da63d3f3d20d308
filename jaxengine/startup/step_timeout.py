"""How long a step may take before it counts as hung."""

from __future__ import annotations

from collections.abc import Mapping

from buckets import Bucket

FACTOR = 100.0
"""Steps are measured with little context and alone; with much, beside other work of the machine, they take many times that."""

LEAST_S = {"cpu": 60.0}
LEAST_ELSEWHERE_S = 30.0
"""The least that a step is given: a CPU is shared with others, whose work may be long in the way."""


def step_timeout(platform: str, measured: Mapping[Bucket, float], *, compiles_on_use: bool) -> float:
    """Seconds; 0, which is for ever, where a step may have to wait for a compiler.

    Args:
        platform: the device's.
        measured: seconds that a step of each shape took at the start.
        compiles_on_use: programs are compiled by the first step that needs them.
    """
    if compiles_on_use:
        return 0.0
    return max(LEAST_S.get(platform, LEAST_ELSEWHERE_S), FACTOR * max(measured.values(), default=0.0))
