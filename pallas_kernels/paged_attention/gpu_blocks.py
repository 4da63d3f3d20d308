"""How much of the work one program of the GPU kernel takes.

Tiles of long rows were chosen on an H100 for heads of 128 in bfloat16, four to a KV head (2,048 tokens after 30,720, as in
`benchmarks/gpu_attention.py`): 64 queries by 32 tokens multiply 371 TFLOP/s, 128 by 64 296. The rest is chosen from sizes.
"""

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
MANY_QUERIES, MANY_BLOCK_TOKENS = 64, 32
"""Longer rows are cut into tiles of so many, in blocks of no more tokens: several small programs fill a multiprocessor better, of
which some multiply while others take powers.
"""
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
    many = many_tokens(
        rows=rows,
        places=places,
        group=group,
        most_queries=FLOAT32_QUERIES if single else MANY_QUERIES,
        longer_than=few.places,
        block_tokens=min(block_tokens, MANY_BLOCK_TOKENS),
    )
    return Blocks(few, many)
