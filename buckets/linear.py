"""The linear ramp-up grid of the Gaudi documents, and what it becomes here.

Their buckets are rectangles (batch, sequence) in both phases:

    prompt   bs [1, 32, 4]   seq [128, 128, 1024]    {1, 2, 4} x {128, 256, .. 1024}    24 buckets
    decode   bs [1, 128, 4]  seq [128, 128, 2048]    {1, 2, 4} x {128, 256, .. 2048}    48 buckets

The second number of a decode bucket is the context that its attention covers. Our attention takes the context as data and
stops at the true length, so that axis is dropped: the 48 decode buckets are the three buckets 1x1, 2x1 and 4x1.

Defaults, as `VLLM_{PROMPT,DECODE}_{BS,SEQ}_BUCKET_{MIN,STEP,MAX}` had them; `DECODE_BLOCK` has no meaning here. A block is 128
tokens as their documents recommend, whatever our page size: pages of 16 would mean hundreds of shapes.

                MIN          STEP                    MAX
    PROMPT_BS   1            min(max_num_seqs, 32)   min(max_num_seqs, 64)
    PROMPT_SEQ  block        block                   max_model_len
    DECODE_BS   1            min(max_num_seqs, 32)   max_num_seqs
"""

from __future__ import annotations

from buckets.grid import Grid
from buckets.limits import Limits
from buckets.ranges import Range, check_lengths, linear_range
from buckets.rectangles import rectangle_grid
from buckets.shape import Bucket


def linear_buckets(batch: Range, seq: Range, *, max_tokens: int | None = None) -> tuple[Bucket, ...]:
    """All pairs of two linear ranges, in the order (batch, seq).

    Args:
        batch: `(min, step, max)` of the rows.
        seq: `(min, step, max)` of the tokens per row.
        max_tokens: leave out buckets with more token places. When that leaves none, all are kept, as the documents do.
    """
    pairs = [Bucket(b, s) for b in linear_range(*batch) for s in linear_range(*seq) if b and s]
    fitting = [bucket for bucket in pairs if max_tokens is None or bucket.tokens <= max_tokens]
    return tuple(sorted(fitting or pairs))


def plan_linear(
    limits: Limits,
    *,
    prefill_batch_range: Range | None = None,
    prefill_seq_range: Range | None = None,
    decode_batch_range: Range | None = None,
) -> Grid:
    """The linear grid: the rectangles of the documents, and decode buckets without their context axis.

    Each range is `(min, step, max)`.

    Raises:
        ValueError: a range that is not three numbers, or not in order.
    """
    check_lengths(
        3,
        prefill_batch_range=prefill_batch_range,
        prefill_seq_range=prefill_seq_range,
        decode_batch_range=decode_batch_range,
    )
    block, step = limits.block, min(limits.max_num_seqs, 32)
    batch = prefill_batch_range or (1, step, min(limits.max_num_seqs, 64))
    seq = prefill_seq_range or (block, block, limits.max_model_len)
    decode = decode_batch_range or (1, step, limits.max_num_seqs)
    prefill = linear_buckets(batch, seq, max_tokens=limits.max_num_batched_tokens)
    return rectangle_grid(prefill, linear_range(*decode), limits)
