"""Long sounds are cut into pieces where they are quiet, as vLLM does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxengine.contract.arrays import Floats

SEARCHED_S = 1.0
"""The last second of a piece is where a quiet place is looked for."""
QUIET_S = 0.1
"""What is quiet is so for so long."""


def cut_where_quiet(samples: Floats, rate: int, most: int) -> Sequence[tuple[int, int]]:
    """Pieces of at most `most` samples, each from and up to and without, that make up all of them.

    A piece ends in the middle of the quietest tenth of a second of its last second.
    """
    pieces, begin = [], 0
    searched, quiet = min(int(SEARCHED_S * rate), most // 2), max(1, int(QUIET_S * rate))
    while len(samples) - begin > most:
        first = begin + most - searched
        power = samples[first : begin + most].astype(np.float64) ** 2
        energy = np.convolve(power, np.ones(min(quiet, searched)), "valid")
        end = first + int(energy.argmin()) + min(quiet, searched) // 2
        pieces.append((begin, end))
        begin = end
    return [*pieces, (begin, len(samples))]
