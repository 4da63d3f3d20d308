"""How much of the work one program of the GPU kernel takes. Chosen from sizes and compiled, not measured: no GPU was at hand."""

from __future__ import annotations

from dataclasses import dataclass

FEW_QUERIES = 64
"""Up to here a row's queries of a KV head are one tile, memory-bound, and its context is split."""
PROGRAMS = 528
"""Decode: splits are added until there are as many programs, four for each multiprocessor of an H100."""
SPLIT_TOKENS = 256
"""Decode: a share of less is not worth the combining."""
SHARED_BYTES = 96 << 10
"""Of keys and values in flight: an A100 gives a program 163 KiB in all."""
MIN_QUERIES = MIN_WIDTH = 16  # what tensor cores take
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
        most = min(most, 32)  # no tensor cores: operands lie in registers
    queries = max(MIN_QUERIES, power_of_two(group), min(most, power_of_two(places * group)))
    tile_places = min(places, queries // group)
    block_tokens = INTERPRETED_TOKENS if interpreted else 64 if width * itemsize <= 512 else 32
    splits = 1
    if few:
        programs = rows * kv_heads * -(-places // tile_places)
        worth = most_tokens // (block_tokens if interpreted else SPLIT_TOKENS)
        splits = max(1, min(-(-PROGRAMS // programs), worth))
    stages = max(1, min(3, SHARED_BYTES // (2 * block_tokens * width * itemsize)))
    return Blocks(queries, tile_places, block_tokens, splits, 4 if queries <= 64 else 8, stages)


def power_of_two(number: int) -> int:
    """The smallest one that is not below `number`."""
    return 1 << (number - 1).bit_length()
