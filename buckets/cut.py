"""How a stretch of a prompt is cut into the rows of a prefill bucket."""

from __future__ import annotations

from itertools import pairwise


def cut_rows(start: int, length: int, seq: int, *, aligned: bool = False) -> list[tuple[int, int]]:
    """Cut positions `[start, start + length)` into rows of at most `seq` tokens.

    With seq 8, start 20 and length 15 (one character a token, `|` a multiple of 8 from position 0):

        position   16      24      32
                   |....xxx|xxxxxxxx|xxxx
        plain           [20..27][28..34]           2 rows
        aligned         [20..23][24..31][32..34]   3 rows

    Args:
        start: position of the first token.
        length: number of tokens.
        seq: token places of a row.
        aligned: cut at multiples of `seq` from position 0, so that a token's row does not depend on where its stretch
            starts (deterministic mode).

    Returns:
        `(offset, count)` of each row in order; `offset` counts from `start`.
    """
    first = min(length, seq - start % seq) if aligned else min(length, seq)
    cuts = [0, *range(first, length, seq), length] if length > 0 else []
    return [(low, high - low) for low, high in pairwise(cuts)]
