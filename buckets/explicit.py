"""Grids written out by hand: `4x128` is a prefill bucket, `8x1` a decode bucket, `4x128+8` both in one launch."""

from __future__ import annotations

import re

from buckets.grid import Grid
from buckets.limits import Limits
from buckets.shape import Bucket, StepShape

_ITEM = re.compile(r"(\d+)x(\d+)(?:\+(\d+)(?:x1)?)?")


def parse_shape(text: str) -> StepShape:
    """Read `BATCHxSEQ`, or `BATCHxSEQ+ROWS` for prefill and decode rows in one launch.

    Raises:
        ValueError: not of that form, or a size of 0.
    """
    match = _ITEM.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a bucket: write 4x128 (prefill), 8x1 (decode) or 4x128+8 (both in one launch)"
        )
    bucket = Bucket(int(match[1]), int(match[2]))
    if match[3] is not None:
        return StepShape(bucket, Bucket(int(match[3]), 1))
    return StepShape(None, bucket) if bucket.seq == 1 else StepShape(bucket, None)


def plan_explicit(limits: Limits) -> Grid:
    """The shapes of `limits.buckets`, and the pure shapes of every pair among them.

    Raises:
        ValueError: no buckets, an item that cannot be read, no prefill bucket, or decode buckets that cannot hold
            `max_num_seqs` sequences.
    """
    if not limits.buckets:
        raise ValueError("the explicit planner needs buckets, such as 4x128 8x1; give them or choose another planner")
    grid = Grid(parse_shape(item) for item in limits.buckets)
    if not grid.prefill_buckets:
        raise ValueError(f"buckets {' '.join(limits.buckets)} have no prefill bucket; add one such as 4x128")
    if grid.max_decode_rows < limits.max_decode_rows:
        raise ValueError(
            f"buckets {' '.join(limits.buckets)} hold at most {grid.max_decode_rows} decode rows and {limits.max_decode_rows} "
            f"sequences may run; add {limits.max_decode_rows}x1 or lower max_num_seqs"
        )
    return grid
