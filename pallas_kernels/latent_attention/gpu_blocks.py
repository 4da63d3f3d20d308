"""How much of the work one program of the GPU kernel takes. Chosen from sizes and compiled, not measured.

A program's sums are as wide as a value, 512 in DeepSeek's models: those of 64 queries fill half a multiprocessor's registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.gpu.attention.blocks import (
    INTERPRETED_BLOCK,
    INTERPRETED_SHARE,
    MIN_BLOCK_TOKENS,
    MIN_WIDTH,
    MOST_BLOCK_TOKENS,
    Blocks,
    few_tokens,
    many_tokens,
    power_of_two,
)

QUERIES = {1: 32, 2: 64, 4: 16}
"""Places x heads of a tile, at most, by the bytes of a stored number.

Those of one byte are converted in registers; float32 has no tensor cores, and its operands lie there.
"""
WARPS = 8
PROGRAMS = 264
"""Contexts are shared out to about as many programs, two after one another for each multiprocessor of an H100: one fills it."""
SHARE_TOKENS = 256
BLOCK_BYTES = 40 << 10
"""Of a block's vectors as products take them. With 64 queries a program has 112 KiB of shared memory on an A100, which gives one
163, and 144 on an H100.
"""
MAX_VALUE_SIZE = 512
"""Wider sums do not fit the registers."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How the work is cut: rows in `rows`, heads in `tiles` of `heads` (the last one may have fewer), vectors in `widths`.

    These are powers of two: what is key and value takes the first, what is key only the second, if there is any.
    """

    rows: Blocks
    tiles: int
    heads: int
    widths: tuple[int, ...]


def choose_blocks(
    *, rows: int, places: int, heads: int, sizes: tuple[int, int], itemsize: int, most_tokens: int, interpreted: bool
) -> Cut:
    """For `places` of `rows` rows and the padding, `most_tokens` positions a row.

    A vector has `sizes` of values and of other numbers, `itemsize` bytes each as they are stored.
    """
    most_queries = QUERIES[itemsize]
    tiles = -(-heads // most_queries)
    group = -(-heads // tiles)
    widths = tuple(max(MIN_WIDTH, power_of_two(size)) for size in sizes if size)
    fitting = BLOCK_BYTES // (sum(widths) * max(2, itemsize))
    block_tokens = max(MIN_BLOCK_TOKENS, min(MOST_BLOCK_TOKENS, 1 << (fitting.bit_length() - 1)))
    if interpreted:
        block_tokens = INTERPRETED_BLOCK
    few = few_tokens(
        rows=rows,
        places=places,
        group=group,
        most_queries=most_queries,
        programs=PROGRAMS // tiles,
        share_tokens=INTERPRETED_SHARE if interpreted else SHARE_TOKENS,
        most_tokens=most_tokens,
        block_tokens=block_tokens,
        warps=WARPS,
    )
    many = many_tokens(
        rows=rows,
        places=places,
        group=group,
        most_queries=most_queries,
        longer_than=few.places,
        block_tokens=block_tokens,
        warps=WARPS,
    )
    return Cut(Blocks(few, many), tiles, group, widths)
