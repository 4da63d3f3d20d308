"""Positions in three axes, time, height and width, of prompts that show something (arXiv 2409.12191)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxengine.contract.arrays import Int32s
from jaxengine.media.processors.processor import Made


def three_axes(length: int, shown: Sequence[tuple[Made, Int32s]], *, merge: int) -> tuple[Int32s, int]:
    """Those of a prompt, `[3, length]`, and what is added to a later token's position.

    The tokens of a text count on all axes alike. Those of an item begin where the text before it ends, and count its frames, rows
    and columns of embeddings; the text behind goes on after the longest side. Where the places of one item are several runs, each
    has as many of its frames and begins anew.
    """
    axes = np.empty((3, length), np.int32)
    at = position = 0
    for made, places in shown:
        runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
        frames, height, width = made.grid[0] // len(runs), made.grid[1] // merge, made.grid[2] // merge
        within = np.indices((frames, height, width)).reshape(3, -1)
        within[0] = (within[0] * made.interval).astype(np.int64)
        for run in runs:
            text = int(run[0]) - at
            axes[:, at : run[0]] = position + np.arange(text)
            position += text
            axes[:, run[0] : run[-1] + 1] = position + within
            position += max(height, width)
            at = int(run[-1]) + 1
    axes[:, at:] = position + np.arange(length - at)
    return axes, int(axes.max()) + 1 - length
