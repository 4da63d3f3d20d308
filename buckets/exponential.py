"""Grids in equal ratios, as the Gaudi plugin plans them today, without its context axis.

Its defaults, each `(min, step, max, count)`, with `log2` rounded up:

    prefill batch   (1, 2, max_num_seqs, log2 + 1)
    prefill seq     (block, block, longest row, log2)
    decode batch    (1, 2, max_num_seqs, log2 + 1)
"""

from __future__ import annotations

from buckets.grid import Grid
from buckets.limits import Limits
from buckets.ranges import Range, check_lengths, exponential_range
from buckets.rectangles import rectangle_grid
from buckets.shape import Bucket


def plan_exponential(
    limits: Limits,
    *,
    prefill_batch_range: Range | None = None,
    prefill_seq_range: Range | None = None,
    decode_batch_range: Range | None = None,
) -> Grid:
    """Rows of prompts, their tokens, and rows that decode, each in equal ratios.

    Each range is `(min, step, max, count)`. Rectangles of more than `max_num_batched_tokens` places are left out.

    Raises:
        ValueError: a range that is not four numbers, or leaves no rectangle.
    """
    check_lengths(
        4,
        prefill_batch_range=prefill_batch_range,
        prefill_seq_range=prefill_seq_range,
        decode_batch_range=decode_batch_range,
    )
    rows, budget = limits.max_rows, limits.max_num_batched_tokens
    longest = min(budget, limits.max_model_len)
    shortest = min(limits.block, longest)
    batch = prefill_batch_range or (1, 2, rows, _log2(rows) + 1)
    seq = prefill_seq_range or (shortest, shortest, longest, max(1, _log2(longest)))
    decode = decode_batch_range or (1, 2, rows, _log2(rows) + 1)
    rectangles = [Bucket(b, s) for b in exponential_range(*batch) for s in exponential_range(*seq) if b and s]
    prefill = [bucket for bucket in rectangles if bucket.tokens <= budget]
    if not prefill:
        raise ValueError(
            f"no prefill bucket of {batch} x {seq} has at most max_num_batched_tokens={budget} token places; "
            "lower the minimum of prefill_batch_range or prefill_seq_range, or raise max_num_batched_tokens"
        )
    return rectangle_grid(prefill, exponential_range(*decode), limits)


def _log2(value: int) -> int:
    return (value - 1).bit_length()
