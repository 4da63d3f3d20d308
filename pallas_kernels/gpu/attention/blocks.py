"""How a GPU kernel's work is cut: rows of few tokens into shares of their context, longer ones into tiles."""

from __future__ import annotations

from dataclasses import dataclass

STAGES = 3
"""Blocks in flight."""
MOST_BLOCK_TOKENS = 64
MIN_QUERIES = MIN_WIDTH = MIN_BLOCK_TOKENS = 16  # what tensor cores take
INTERPRETED_BLOCK, INTERPRETED_SHARE = 32, 64
"""Tokens: cases are small, and they are to have several shares of several blocks."""


@dataclass(frozen=True, slots=True)
class Few:
    """Rows of up to `places` tokens: a tile each, its context shared out to several programs, `block_tokens` positions at a time.

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
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Many:
    """Longer rows: at most `tiles` tiles of up to `places` tokens, `size` queries of a KV head, for `warps` warps.

    They attend `block_tokens` positions at a time.
    """

    places: int
    size: int
    tiles: int
    warps: int
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """How rows are attended, blocks being loaded in `stages`. `many` is None where no row can be long."""

    few: Few
    many: Many | None
    stages: int = STAGES


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
    return Few(most, tuple(sorted(sizes)), wanted, share_blocks, shares, states, warps, block_tokens)


def many_tokens(
    *,
    rows: int,
    places: int,
    group: int,
    most_queries: int,
    longer_than: int,
    block_tokens: int,
    warps: int | None = None,
) -> Many | None:
    """Rows of more than `longer_than` tokens, in tiles of `most_queries`; None where there can be none."""
    longer = min(rows + 1, places // (longer_than + 1))  # padding is like a row
    if longer == 0:
        return None
    most = max(1, most_queries // group)
    size = _size(most * group)
    tiles = longer + (places - longer) // most  # c places take at most 1 + (c - 1) // most of them
    return Many(most, size, tiles, warps or (4 if size <= 64 else 8), block_tokens)


def power_of_two(number: int) -> int:
    """The smallest one that is not below `number`."""
    return 1 << (number - 1).bit_length()


def _size(queries: int) -> int:
    return max(MIN_QUERIES, power_of_two(queries))
