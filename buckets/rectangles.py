"""What the Gaudi lists of rectangles become here, where a bucket is capacity: rows and prompts of any kind share its places."""

from __future__ import annotations

from collections.abc import Iterable

from buckets.grid import Grid
from buckets.limits import Limits
from buckets.shape import Bucket


def rectangle_grid(prefill: Iterable[Bucket], decode_rows: Iterable[int], limits: Limits) -> Grid:
    """The grid of `prefill` rectangles and of decode buckets `(rows, 1)`.

    A step may hold every running sequence, whatever maximum a range names, so `(max_rows, 1)` is always there. And prompts go on
    beside all of them: where no rectangle has a row for every sequence, one is added with the whole token budget.
    """
    rectangles, rows = list(prefill), limits.max_rows
    if not any(bucket.batch >= rows for bucket in rectangles):
        rectangles.append(Bucket(rows, -(-limits.max_tokens // rows)))
    return Grid([*rectangles, *(Bucket(count, 1) for count in {*decode_rows, rows} - {0})])
