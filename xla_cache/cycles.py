"""What the TPU compiler itself says a program takes."""

from __future__ import annotations

import re

import jax

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def estimated_cycles(compiled: jax.stages.Compiled) -> int | None:
    """The sum of the cycles that XLA wrote beside its instructions; None where it writes none.

    An instruction in a loop counts once, and kernels that are not XLA's own (Pallas) count nothing: a floor, good for
    comparing two forms of one program.
    """
    counts = CYCLES.findall(compiled.as_text() or "")
    return sum(map(int, counts)) if counts else None
