"""How much of the work one program of the GPU kernel takes. Chosen from sizes and compiled, not measured: no GPU was at hand."""

from __future__ import annotations

from dataclasses import dataclass

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
STAGES = 3
MOST_BLOCK_TOKENS = 64
MIN_QUERIES = MIN_WIDTH = MIN_BLOCK_TOKENS = 16  # what tensor cores take
FLOAT32_QUERIES = 16  # no tensor cores: operands lie in registers
INTERPRETED_BLOCK, INTERPRETED_SHARE = (
    32,
    64,
)  # tokens: cases are small, and they are to have several shares of several blocks


@dataclass(frozen=True, slots=True)
class Few:
    """Rows of up to `places` tokens: a tile each, its context shared out to several programs.

    A program of `warps` warps computes with as many queries as the first of `sizes` that holds its tile's. About `wanted` shares
    per KV head of at least `share_blocks` blocks are at most `shares`, their places, counted once per share, at most `states`.
    """

    places: int
    sizes: tuple[int, ...]
    wanted: int
    share_blocks: int
    shares: int
    states: int
    warps: int


@dataclass(frozen=True, slots=True)
class Many:
    """Longer rows: at most `tiles` tiles of up to `places` tokens, `size` queries of a KV head, for `warps` warps."""

    places: int
    size: int
    tiles: int
    warps: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """How rows are attended, `block_tokens` positions at a time, loaded in `stages`. `many` is None where no row can be long."""

    few: Few
    many: Many | None
    block_tokens: int
    stages: int = STAGES


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


def few_tokens(
    *,
    rows: int,
    places: int,
    group: int,
    most_queries: int,
    programs: int,
    share_tokens: int,
    most_tokens: int,
    block_tokens: int,
    warps: int = 4,
) -> Few:
    """Rows of so few tokens that they are one tile, of `most_queries`, for about `programs` shares of `share_tokens` or more."""
    most = min(places, max(1, most_queries // group))
    wanted = max(1, programs)
    share_blocks = share_tokens // block_tokens
    # Shares are of total / wanted blocks or more, but a row's last one may be of less.
    shares = min(wanted + rows, rows * -(-most_tokens // (share_blocks * block_tokens)))
    states = min(min(places, rows * most) + wanted * most, shares * most)
    sizes = {_size(group), _size(most * group)}  # most of these rows are of one token
    return Few(most, tuple(sorted(sizes)), wanted, share_blocks, shares, states, warps)


def many_tokens(
    *, rows: int, places: int, group: int, most_queries: int, longer_than: int, warps: int | None = None
) -> Many | None:
    """Rows of more than `longer_than` tokens, in tiles of `most_queries`; None where there can be none."""
    longer = min(rows + 1, places // (longer_than + 1))  # padding is like a row
    if longer == 0:
        return None
    most = max(1, most_queries // group)
    size = _size(most * group)
    tiles = longer + (places - longer) // most  # c places take at most 1 + (c - 1) // most of them
    return Many(most, size, tiles, warps or (4 if size <= 64 else 8))


def power_of_two(number: int) -> int:
    """The smallest one that is not below `number`."""
    return 1 << (number - 1).bit_length()


def _size(queries: int) -> int:
    return max(MIN_QUERIES, power_of_two(queries))
