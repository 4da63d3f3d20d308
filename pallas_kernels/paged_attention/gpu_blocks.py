"""How much of the work one program of the GPU kernel takes. Chosen from sizes and compiled, not measured: no GPU was at hand."""

from __future__ import annotations

from pallas_kernels.gpu.attention.blocks import (
    INTERPRETED_BLOCK,
    INTERPRETED_SHARE,
    MIN_BLOCK_TOKENS,
    MOST_BLOCK_TOKENS,
    Blocks,
    few_tokens,
    many_tokens,
)

FEW_QUERIES = 64
"""Up to here a row's queries of a KV head are one tile, memory-bound, and its context is shared out."""
MANY_QUERIES = 128
"""Longer rows are cut into tiles of so many; of half of them for heads of more than 128."""
PROGRAMS = 528
"""Contexts are shared out to about as many programs, four for each multiprocessor of an H100."""
SHARE_TOKENS = 256
"""A share of less is not worth the combining."""
BLOCK_BYTES = 16 << 10
"""Of a block's keys, and of its values. Three blocks are in flight, 96 KiB: an A100 gives a program 163."""
FLOAT32_QUERIES = 16  # no tensor cores: operands lie in registers


def choose_blocks(
    *, rows: int, places: int, group: int, kv_heads: int, width: int, itemsize: int, most_tokens: int, interpreted: bool
) -> Blocks:
    """For `places` of `rows` rows and the padding, `most_tokens` positions a row, `group` query heads per KV head."""
    block_tokens = max(MIN_BLOCK_TOKENS, min(MOST_BLOCK_TOKENS, BLOCK_BYTES // (width * itemsize)))
    if interpreted:
        block_tokens = INTERPRETED_BLOCK
    single = itemsize == 4
    few = few_tokens(
        rows=rows,
        places=places,
        group=group,
        most_queries=FLOAT32_QUERIES if single else FEW_QUERIES,
        programs=PROGRAMS // kv_heads,
        share_tokens=INTERPRETED_SHARE if interpreted else SHARE_TOKENS,
        most_tokens=most_tokens,
        block_tokens=block_tokens,
    )
    most_queries = FLOAT32_QUERIES if single else MANY_QUERIES // 2 if width > 128 else MANY_QUERIES
    many = many_tokens(rows=rows, places=places, group=group, most_queries=most_queries, longer_than=few.places)
    return Blocks(few, many, block_tokens)
