"""How much of the work one program of the GPU kernel takes. Chosen from sizes and compiled, not measured: no GPU was at hand."""

from __future__ import annotations

from dataclasses import dataclass

FEW_QUERIES = 64
"""Up to here a row's queries of a KV head are one tile, memory-bound, and its context is split."""
PROGRAMS = 528
"""Decode: splits are added until there are as many programs, four for each multiprocessor of an H100."""
SPLIT_TOKENS = 256
"""Decode: a share of less is not worth the combining."""
BLOCK_BYTES = 16 << 10
"""Of a block's keys, and of its values. Three blocks are in flight, 96 KiB: an A100 gives a program 163."""
STAGES = 3
MOST_BLOCK_TOKENS = 64
MIN_QUERIES = MIN_WIDTH = MIN_BLOCK_TOKENS = 16  # what tensor cores take
INTERPRETED_TOKENS = 32  # cases are small, and they are to have several blocks


@dataclass(frozen=True, slots=True)
class Blocks:
    """`queries` of a tile of `tile_places`, `block_tokens` at a time, shared by `splits` programs of `warps` warps."""

    queries: int
    tile_places: int
    block_tokens: int
    splits: int
    warps: int
    stages: int


def choose_blocks(
    *, rows: int, places: int, group: int, kv_heads: int, width: int, itemsize: int, most_tokens: int, interpreted: bool
) -> Blocks:
    """For rows of `places` tokens and at most `most_tokens` positions, `group` query heads per KV head."""
    few = places * group <= FEW_QUERIES
    most = FEW_QUERIES if few or width > 128 else 128
    if itemsize == 4:
        most = min(most, 16)  # no tensor cores: operands lie in registers
    queries = max(MIN_QUERIES, power_of_two(group), min(most, power_of_two(places * group)))
    tile_places = min(places, queries // group)
    block_tokens = max(MIN_BLOCK_TOKENS, min(MOST_BLOCK_TOKENS, BLOCK_BYTES // (width * itemsize)))
    if interpreted:
        block_tokens = INTERPRETED_TOKENS
    splits = 1
    if few:
        programs = rows * kv_heads * -(-places // tile_places)
        worth = most_tokens // (block_tokens if interpreted else SPLIT_TOKENS)
        splits = max(1, min(-(-PROGRAMS // programs), worth))
    return Blocks(queries, tile_places, block_tokens, splits, 4 if queries <= 64 else 8, STAGES)


def power_of_two(number: int) -> int:
    """The smallest one that is not below `number`."""
    return 1 << (number - 1).bit_length()
