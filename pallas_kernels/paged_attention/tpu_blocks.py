"""How much of the work the TPU kernel takes at a time: a rule, and a table for where the compiler's schedule says other."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pallas_kernels.storage import LANES
from pallas_kernels.tpu_chip import MIB, SIMULATED, Chip

BLOCK_BYTES = 2 * MIB
"""Decode: a block is long enough that its products' latency hides behind its copy, and two of them fit every chip."""
BLOCK_TOKENS = 512
"""Prefill: tokens whose scores are computed together."""
MOST_BLOCK_TOKENS = 2048
QUERIES = 512
"""Prefill: places x query heads of a KV head that meet a block together."""
FEW_QUERIES = 64
"""Up to here a tile is memory-bound: all heads are unrolled and read straight from the block."""
ROWS_PER_STEP = 16
"""Decode: rows whose queries are copied in together."""

SMALLEST = (0, LANES, LANES)
"""What is simulated has small cases, and they are to have several blocks."""
TABLE = {("v6e", 128, 2): (BLOCK_BYTES, BLOCK_TOKENS, 2 * QUERIES)}
"""(chip, lanes of a query, bytes of a computed value) -> (decode block bytes, prefill block tokens, prefill queries).

From the static analysis of `benchmarks/kernels.py`, for no chip has run it. v6e: 1,024 queries use 37% of the matrix units' peak
where 512 use 31%; 2,048 are no better, and blocks of 1,024 tokens (34% with 512 queries) are wasted on short contexts. The size
of pages is no key: a block has about as many tokens whatever it is.
"""


@dataclass(frozen=True, slots=True)
class Blocks:
    """`pages` per block, `places` of a row per tile, `tiles` per grid step; `few` queries per KV head: the decode path."""

    pages: int
    places: int
    tiles: int
    few: bool
    vmem_bytes: int
    """An upper bound of what the kernel keeps in VMEM."""


def choose_blocks(
    chip: Chip,
    *,
    rows: int,
    places: int,
    group: int,
    kv_heads: int,
    width: int,
    page: tuple[int, int, int],
    itemsize: int,
    computed_itemsize: int,
) -> Blocks | None:
    """The blocks for rows of `places` tokens and `group` query heads per KV head, or None if nothing fits the chip's VMEM.

    Of a quantised cache a block has as many tokens as of the type in which it is computed: that takes the time and the room.
    """
    page_tokens, channels, lanes = page
    block_bytes, block_tokens, queries = TABLE.get(
        (chip.name, width, computed_itemsize),
        SMALLEST if chip.name == SIMULATED else (BLOCK_BYTES, BLOCK_TOKENS, QUERIES),
    )
    few = places * group <= FEW_QUERIES
    if few:
        block_tokens = min(MOST_BLOCK_TOKENS, block_bytes // (channels * lanes * computed_itemsize))
    unit = LANES // math.gcd(LANES, page_tokens)  # pages that make whole vectors of scores
    pages = max(1, block_tokens // (unit * page_tokens)) * unit
    tile_places = places if few else max(1, min(places, _power_of_two(queries // group)))
    tiles = min(rows, ROWS_PER_STEP) if few else 1
    page_bytes = page_tokens * channels * lanes * itemsize
    while True:
        queries = -(-tile_places * group // 16) * 16
        needed = (
            _vmem_bytes(tiles, few, pages * page_tokens, queries, kv_heads, width, computed_itemsize)
            + 2 * pages * page_bytes
        )
        if needed <= chip.vmem_bytes * 3 // 4:
            return Blocks(pages, tile_places, tiles, few, needed)
        if not few and tile_places > 1 and tile_places * group > LANES:
            tile_places //= 2
        elif pages > unit:
            pages = pages // 2 // unit * unit
        else:
            return None


def _vmem_bytes(tiles: int, few: bool, tokens: int, queries: int, kv_heads: int, width: int, itemsize: int) -> int:
    """What lies in VMEM beside the two buffers of pages: operands (two of each), a tile's state, scores and weights."""
    operands = 2 * 2 * tiles * kv_heads * queries * width * itemsize
    state = kv_heads * queries * (2 * LANES + width) * 4
    split = 0 if few else 2 * kv_heads * tokens * width * itemsize
    scores = (kv_heads if few else 2) * queries * tokens * 4 * 2
    return operands + state + split + scores


def _power_of_two(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)
