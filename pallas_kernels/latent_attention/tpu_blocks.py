"""How much of the work the TPU kernel takes at a time."""

from __future__ import annotations

import math

from pallas_kernels.storage import LANES
from pallas_kernels.tpu.attention.blocks import Blocks, power_of_two
from pallas_kernels.tpu.chip import SIMULATED, Chip

FEW_TOKENS, MANY_TOKENS = 1024, 512
"""Tokens of a block, for tiles of few queries and of many: a single chain of products and weights needs more, to be busy."""
WIDE_FEW_TOKENS = {"v6e": 2048, "7x": 2048}
"""Likewise for chips whose matrix units are of 256 x 256: they take half the cycles, and latencies count twice."""
FEW_HEADS = 16
"""With so many there is enough time for both latencies while a block arrives, and less of a long block would be cleared."""
FEW_QUERIES, QUERIES = 256, 1024
"""Places x heads that meet a block together, at most: of rows of a few tokens, and of prompts."""
QUERIES_AT_ONCE = 256
"""So many of a tile of many are computed at once."""
FLOAT32_SHARE = 4
"""Blocks in float32 have a share of these tokens: their products take several passes, of operands that are taken apart."""
SMALLEST = (2 * LANES, LANES, 16)
"""What is simulated has small cases, and they are to have several blocks and tiles."""


def choose_blocks(
    chip: Chip,
    *,
    tokens: int,
    heads: int,
    page: tuple[int, int],
    values: int,
    itemsize: int,
    stored: int,
    least: int = 1,
) -> tuple[Blocks, ...] | None:
    """How rows with `tokens` places in all are cut; None if nothing fits the chip's VMEM.

    Numbers are of `itemsize` bytes in products and of `stored` in pages, of which a block is unpacked first where that is less.
    A row of up to `least` tokens has a tile of as many places, those of more take tiles of few queries if they fit one, else of
    many.
    """
    page_tokens, width = page
    wide = FEW_TOKENS if heads <= FEW_HEADS else WIDE_FEW_TOKENS.get(chip.name, FEW_TOKENS)
    few_tokens, many_tokens, few_queries = SMALLEST if chip.name == SIMULATED else (wide, MANY_TOKENS, FEW_QUERIES)
    share = FLOAT32_SHARE if itemsize == 4 and chip.name != SIMULATED else 1
    longest = max(least, 1 << (tokens - 1).bit_length())
    few = min(longest, max(least, power_of_two(few_queries // heads)))
    many = max(2 * places_at_once(heads), min(longest, power_of_two(QUERIES // share // heads)))
    sizes = sorted({least, few, *([many] if longest > few else [])})
    unit = LANES // math.gcd(LANES, page_tokens)  # pages that make whole vectors of scores

    def fitting(lengths: range, places: int) -> Blocks | None:
        pages = max(1, (few_tokens if places <= few else many_tokens) // share // (unit * page_tokens)) * unit
        while True:
            block, rows = pages * page_tokens, places * heads
            needed = block * width * (2 * stored + (itemsize if stored < itemsize else 0))
            needed += rows * (2 * width + values) * itemsize + rows * (2 * LANES + values) * 4
            needed += min(rows, 2 * QUERIES_AT_ONCE) * (block + values) * 4 * 3
            if needed <= chip.vmem_bytes * 3 // 4:
                return Blocks(lengths, pages, places, few=places <= few, vmem_bytes=needed)
            if pages == unit:
                return None
            pages = pages // 2 // unit * unit

    ends = [*(size + 1 for size in sizes[:-1]), tokens + 1]
    chosen = [fitting(range(first, end), size) for first, end, size in zip([1, *ends], ends, sizes, strict=False)]
    return None if None in chosen else tuple(blocks for blocks in chosen if blocks is not None)


def places_at_once(heads: int) -> int:
    """How many places of a tile of many queries are computed at once."""
    return max(1, power_of_two(QUERIES_AT_ONCE // heads))
