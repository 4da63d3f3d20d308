"""Which kernels a GPU runs, and how long, by JAX's profiler.

While it records, XLA launches a step's kernels one by one and not as one graph, so that gaps between them are longer than
otherwise; their own times are what they are. It is to be started and stopped while nothing runs.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

LONGEST = 28
"""Kinds of kernels that are told."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One that ran, from `begin` to `end` in nanoseconds."""

    name: str
    begin: float
    end: float


def traced(run: Callable[[], object], *, last: float = 1.0) -> dict[str, Any]:
    """What the device did in the `last` part of the time of `run`, `summary`.

    Raises:
        RuntimeError: the profiler saw no GPU.
    """
    with tempfile.TemporaryDirectory() as directory:
        jax.profiler.start_trace(directory)
        run()
        jax.profiler.stop_trace()
        kernels = [kernel for path in Path(directory).rglob("*.xplane.pb") for kernel in _kernels(path)]
    if not kernels:
        raise RuntimeError(f"JAX's profiler saw no GPU; the device is a {jax.devices()[0].device_kind}")
    begin, end = min(kernel.begin for kernel in kernels), max(kernel.end for kernel in kernels)
    return summary(kernel for kernel in kernels if kernel.begin >= end - (end - begin) * last)


def _kernels(path: Path) -> Iterable[Kernel]:
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines if "GPU" in plane.name else ():
            if "Stream" in line.name:
                for event in line.events:
                    yield Kernel(event.name, event.start_ns, event.start_ns + event.duration_ns)


def summary(kernels: Iterable[Kernel]) -> dict[str, Any]:
    """Milliseconds from first to last, those in which any ran, and how long and how often by name, numbers in it left out."""
    ordered = sorted(kernels, key=lambda kernel: kernel.begin)
    times: dict[str, list[float]] = defaultdict(list)
    busy, until = 0.0, ordered[0].begin
    for kernel in ordered:
        times[re.sub(r"\d+", "#", kernel.name)].append(kernel.end - kernel.begin)
        busy += max(0.0, kernel.end - max(until, kernel.begin))
        until = max(until, kernel.end)
    longest = sorted(times.items(), key=lambda item: -sum(item[1]))[:LONGEST]
    return {
        "span_ms": round((until - ordered[0].begin) / 1e6, 3),
        "busy_ms": round(busy / 1e6, 3),
        "kernels_ms": [[name, round(sum(taken) / 1e6, 4), len(taken)] for name, taken in longest],
    }
