"""From a `Batch` to padded arrays: one int32 buffer per launch, so that a step costs one transfer to the device.

The buffer of a `StepShape` holds, for the prefill bucket and then for the decode bucket, `tokens [B*S]`, `starts [B]`,
`lengths [B]` and `page_table [B, P]`; and last `sampled [R]`, the flat token places whose hidden states are kept.

    | prefill: tokens | starts | lengths | page_table | decode: tokens | starts | lengths | page_table | sampled |

Padding rows have length 0 and page 0 (the sink) everywhere; padding of `sampled` points at place 0.
This file needs NumPy only: it belongs to the device half, yet the host's share of a step is measured with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from buckets import Bucket, StepShape
from jaxengine.batch import Int32s, Row


@dataclass(frozen=True)
class BlockLayout:
    """Where one bucket's fields lie in the buffer."""

    bucket: Bucket
    pages_per_row: int
    offset: int

    @property
    def fields(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        batch = self.bucket.batch
        return (
            ("tokens", (self.bucket.tokens,)),
            ("starts", (batch,)),
            ("lengths", (batch,)),
            ("page_table", (batch, self.pages_per_row)),
        )

    @property
    def size(self) -> int:
        batch = self.bucket.batch
        return self.bucket.tokens + 2 * batch + batch * self.pages_per_row


@dataclass(frozen=True)
class StepLayout:
    """The layout of one launch: `shape`, `pages_per_row` P and `sampled_rows` R."""

    shape: StepShape
    pages_per_row: int
    sampled_rows: int

    @cached_property
    def blocks(self) -> tuple[BlockLayout, ...]:
        blocks: list[BlockLayout] = []
        offset = 0
        for bucket in (self.shape.prefill, self.shape.decode):
            if bucket is not None:
                blocks.append(BlockLayout(bucket, self.pages_per_row, offset))
                offset += blocks[-1].size
        return tuple(blocks)

    @cached_property
    def sampled_offset(self) -> int:
        return sum(block.size for block in self.blocks)

    @cached_property
    def size(self) -> int:
        """Length of the buffer in int32 words."""
        return self.sampled_offset + self.sampled_rows


def pad(layout: StepLayout, prefill: Sequence[Row], decode: Sequence[Row]) -> Int32s:
    """Write the rows of one launch into a fresh buffer of `layout.size` words.

    Raises:
        ValueError: the rows do not fit the shape, which is an error of the scheduler.
    """
    buffer = np.zeros(layout.size, np.int32)
    sampled: list[int] = []
    place = 0
    per_bucket = [rows for rows, bucket in ((prefill, layout.shape.prefill), (decode, layout.shape.decode)) if bucket]
    if len(prefill) + len(decode) != sum(map(len, per_bucket)):
        raise ValueError(f"rows for a bucket that {layout.shape} does not have")
    for block, rows in zip(layout.blocks, per_bucket, strict=True):
        _write_block(buffer, block, rows)
        seq = block.bucket.seq
        sampled += [place + i * seq + len(row.tokens) - 1 for i, row in enumerate(rows) if row.sampling is not None]
        place += block.bucket.tokens
    if len(sampled) > layout.sampled_rows:
        raise ValueError(f"{len(sampled)} sampled rows do not fit the {layout.sampled_rows} of {layout.shape}")
    buffer[layout.sampled_offset : layout.sampled_offset + len(sampled)] = sampled
    return buffer


def _write_block(buffer: Int32s, block: BlockLayout, rows: Sequence[Row]) -> None:
    batch, seq, pages = block.bucket.batch, block.bucket.seq, block.pages_per_row
    if len(rows) > batch:
        raise ValueError(f"{len(rows)} rows do not fit bucket {block.bucket}")
    lengths = [len(row.tokens) for row in rows]
    if lengths and (max(lengths) > seq or min(lengths) < 1):
        raise ValueError(f"rows of {min(lengths)} to {max(lengths)} tokens do not fit bucket {block.bucket}")
    starts_at = block.offset + batch * seq
    table_at = starts_at + 2 * batch
    if seq == 1:
        buffer[block.offset : block.offset + len(rows)] = [row.tokens[0] for row in rows]
    else:
        for i, row in enumerate(rows):
            at = block.offset + i * seq
            buffer[at : at + len(row.tokens)] = row.tokens
    buffer[starts_at : starts_at + len(rows)] = [row.start for row in rows]
    buffer[starts_at + batch : starts_at + batch + len(rows)] = lengths
    for i, row in enumerate(rows):
        at = table_at + i * pages
        buffer[at : at + len(row.pages)] = row.pages[:pages]
