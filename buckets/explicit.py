"""Grids written out by hand: `4x128` is a bucket of four rows and 512 token places."""

from __future__ import annotations

import re

from buckets.grid import Grid
from buckets.limits import Limits
from buckets.shape import Bucket

_ITEM = re.compile(r"(\d+)x(\d+)")
_PAIR = re.compile(r"(\d+)x(\d+)\+(\d+)(?:x1)?")


def parse_bucket(text: str) -> Bucket:
    """Read `BATCHxSEQ`.

    Raises:
        ValueError: not of that form, or a size of 0.
    """
    text = text.strip()
    if match := _ITEM.fullmatch(text):
        return Bucket(int(match[1]), int(match[2]))
    if match := _PAIR.fullmatch(text):
        batch, seq, rows = map(int, match.groups())
        raise ValueError(
            f"{text!r} is a pair of buckets; a bucket now holds sequences that decode and prompts alike: "
            f"write {batch + rows}x{-(-(batch * seq + rows) // (batch + rows))} for as many rows and places"
        )
    raise ValueError(f"{text!r} is not a bucket: write 4x128 for four rows with 512 token places in all")


def plan_explicit(limits: Limits, *, buckets: tuple[str, ...] | None = None) -> Grid:
    """Exactly these buckets.

    Raises:
        ValueError: no buckets, an item that cannot be read, or none with a row for each of `max_num_seqs` sequences.
    """
    if not buckets:
        raise ValueError("the explicit planner needs buckets, such as 4x128 8x1; give them or choose another planner")
    grid = Grid(parse_bucket(item) for item in buckets)
    if grid.max_rows < limits.max_rows:
        raise ValueError(
            f"buckets {' '.join(buckets)} hold at most {grid.max_rows} rows and {limits.max_rows} sequences may decode "
            f"at once; add {limits.max_rows}x1 or lower max_num_seqs"
        )
    return grid
