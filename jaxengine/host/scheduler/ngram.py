"""Drafts by looking the last tokens up in what was there before (prompt lookup, Saxena 2023): no model, no memory."""

from __future__ import annotations

import numpy as np

from jaxengine.contract.arrays import Int32s
from jaxengine.options.speculation import NgramSpeculation


def propose(tokens: Int32s, speculation: NgramSpeculation) -> tuple[int, ...]:
    """The drafts after `tokens`, from the longest run of last tokens that occurred before, where it occurred last."""
    length = len(tokens)
    # Where a run of last tokens may have ended before: every other place that holds the last token.
    ends = np.flatnonzero(tokens[: length - 1] == tokens[length - 1])
    found = None
    for back in range(1, min(speculation.max_length, length - 1) + 1):
        if back > 1:
            ends = ends[ends >= back - 1]
            ends = ends[tokens[ends - (back - 1)] == tokens[length - back]]
        if not len(ends):
            break
        if back >= speculation.min_length:
            found = int(ends[-1])
    if found is None:
        return ()
    return tuple(tokens[found + 1 : found + 1 + speculation.num_tokens].tolist())
