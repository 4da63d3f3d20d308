"""How much of the work the TPU kernel takes at a time: a rule, and a table for where the compiler's schedule says other."""

from __future__ import annotations

import math

from pallas_kernels.storage import LANES, SUBLANES
from pallas_kernels.tpu.attention.blocks import Blocks, power_of_two
from pallas_kernels.tpu.chip import MIB, SIMULATED, Chip

BLOCK_BYTES = 2 * MIB
"""Few queries: a block is long enough that its products' latency hides behind its copy, and two of them fit every chip."""
BLOCK_TOKENS = 512
"""Many queries: tokens whose scores are computed together."""
MOST_BLOCK_TOKENS = 1024
"""Of one KV head or two more of a longer block is missing where a row ends, and pages that are there only in part go one by one.

v6e, 8 queries of one head of 128: rows at 1,024 positions read at 92% of the bandwidth, at 35% with blocks of 2,048; at 2,500 at
70 and 47%, at 8,192 at 99% with both. With blocks of 512 it is 80 to 85% throughout: its products then outlast its copy.
"""
WINDOWS = 4
"""Where so many windows fit a block, blocks are as long as one: pages that a window does not reach go one by one, too.

v6e, 64 rows of 8 queries of a head of 64, windows of 128 and pages of 64: 15, 62 and 35 thousand cycles at 1,024, 1,100 and 3,000
positions, 68, 159 and 71 with blocks of 1,024. Windows of 512 in blocks of 512 took 26 and 85 at 1,024 and 3,000, 73 and 77 in
blocks of 1,024. Of a prompt of 2,048 tokens with windows of 128 it takes 45 thousand with blocks of two windows, 53 with 512.
"""
QUERIES = 512
"""Places x query heads of a KV head that meet a block together, at most."""
FEW_QUERIES = 64
"""Up to here a tile is memory-bound: all heads are unrolled and read straight from the block."""
FEW_TILES = 4
"""A prompt that makes more tiles of few queries than this one is worth code of its own."""

SMALLEST = (0, 2 * LANES, LANES, 16)
"""What is simulated has small cases, and they are to have several blocks and tiles."""
TABLE = {("v6e", 128, 2): (BLOCK_BYTES, BLOCK_TOKENS, 2 * QUERIES, FEW_QUERIES)}
"""(chip, lanes of a query, bytes of a computed value) -> (block bytes for few queries, block tokens, queries, few queries).

From the static analysis of `benchmarks/kernels.py`, for no chip has run it. On v6e 1,024 queries keep the matrix units busier
than 512, and take a block's heads apart half as often; 2,048 gain little and waste more on short prompts, and so do blocks of
1,024 tokens. The size of pages is no key: a block has about as many tokens whatever it is.
"""


def spare_columns(chip: Chip, width: int) -> bool:
    """Whether products of values `[tokens, width]` leave columns of a matrix unit idle, enough for one more product."""
    return -width % chip.matrix_columns >= LANES


def heads_together(chip: Chip, *, width: int, kv_heads: int) -> int:
    """KV heads whose scores of a block of many queries are computed before their weights are.

    Where columns are idle four heads take less than two by two; on v5e, whose smaller units are busy in five cycles of six with
    two, they take more (`benchmarks/kernels.py`).
    """
    return math.gcd(kv_heads, 4 if spare_columns(chip, width) else 2)


def choose_blocks(
    chip: Chip,
    *,
    tokens: int,
    group: int,
    kv_heads: int,
    width: int,
    page: tuple[int, int, int],
    itemsize: int,
    computed_itemsize: int,
    window: int | None = None,
) -> tuple[Blocks, ...] | None:
    """How rows with `tokens` places in all are cut, `group` query heads per KV head; None if nothing fits the chip's VMEM.

    A row of one token has a tile without a second place. Rows of more take tiles of few queries if they fit one (or if
    not even the longest one needs many of them), and long ones tiles of many queries.

    Of a quantised cache a block has as many tokens as of the type in which it is computed: that takes the time and the room.
    """
    page_tokens, channels, lanes = page
    block_bytes, block_tokens, queries, few_queries = TABLE.get(
        (chip.name, width, computed_itemsize),
        SMALLEST if chip.name == SIMULATED else (BLOCK_BYTES, BLOCK_TOKENS, QUERIES, FEW_QUERIES),
    )
    few_tokens = min(MOST_BLOCK_TOKENS, block_bytes // (channels * lanes * computed_itemsize))
    reached = few_tokens if window is None else max(LANES, 2 * power_of_two(window - 1))
    if WINDOWS * reached <= few_tokens:
        few_tokens = reached
        block_tokens = min(block_tokens, 2 * reached)
    few_places = power_of_two(few_queries // group)
    places = [1]
    if few_places >= SUBLANES and tokens > 1:
        places.append(few_places)
    if tokens > (FEW_TILES * few_places if len(places) > 1 else 1):
        places.append(max(SUBLANES, min(power_of_two(queries // group), power_of_two(2 * tokens - 1))))

    def fitting(lengths: range, places: int) -> Blocks | None:
        few = places <= max(1, few_places)
        together = kv_heads if few else heads_together(chip, width=width, kv_heads=kv_heads)
        unit = LANES // math.gcd(LANES, page_tokens)  # pages that make whole vectors of scores
        pages = max(1, (few_tokens if few else block_tokens) // (unit * page_tokens)) * unit
        while True:
            rows = -(-places * group // 16) * 16
            needed = _vmem_bytes(few, pages * page_tokens, rows, kv_heads, together, width, computed_itemsize)
            needed += 2 * pages * page_tokens * channels * lanes * itemsize
            if needed <= chip.vmem_bytes * 3 // 4:
                return Blocks(lengths, pages, places, few, needed)
            if not few and places > SUBLANES and places * group > LANES:
                places //= 2
            elif pages > unit:
                pages = pages // 2 // unit * unit
            else:
                return None

    first = [1, *(before + 1 for before in places[:-1]), tokens + 1]
    chosen = [fitting(range(*first[at : at + 2]), size) for at, size in enumerate(places)]
    return None if None in chosen else tuple(blocks for blocks in chosen if blocks is not None)


def _vmem_bytes(few: bool, tokens: int, queries: int, kv_heads: int, together: int, width: int, itemsize: int) -> int:
    """What lies in VMEM beside the two buffers of pages: queries and results, a tile's state, scores and weights."""
    moved = 3 * kv_heads * queries * width * itemsize
    state = kv_heads * queries * (2 * LANES + width) * 4
    split = 0 if few else 2 * kv_heads * tokens * width * itemsize
    scores = together * queries * tokens * 4 * 2
    return moved + state + split + scores
