"""What the TPU compiler itself says a program takes."""

from __future__ import annotations

import re

import jax

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
UNKNOWN = 1 << 62
"""XLA writes the largest integer beside what it has no estimate for, sorts among them."""


def estimated_cycles(compiled: jax.stages.Compiled) -> int | None:
    """The sum of the cycles that XLA wrote beside its instructions; None where it writes none.

    An instruction in a loop counts once, and kernels that are not XLA's own (Pallas) count nothing: a floor, good for
    comparing two forms of one program.
    """
    counts = [int(count) for count in CYCLES.findall(compiled.as_text() or "")]
    known = [count for count in counts if count < UNKNOWN]
    return sum(known) if known else None
