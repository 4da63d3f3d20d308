"""The default grid: few shapes, little padding, chosen by simulation on recorded traffic (`benchmarks/padding.py`).

For 256 sequences and 2,048 tokens a step it is 24 shapes:

    decode    1 2 4 8 12 16 24 32 48 64 96 128 192 256     doubling, and halfway between from 8 on
    prefill   16x64 24x64 28x64 32x64                      the bulk; 28 rows are full beside 256 decoding sequences
              1x16 4x16 8x16 16x16 32x16 64x16             many short prompts, and what is left after a cached prefix

Where the first tokens of a step are free (`Limits.free_tokens`: on accelerators 128) there are 11:

    decode    8 16 32 64 128 256                           doubling, and halfway between from 512 on
    prefill   16x64 28x64 32x64
              8x16 32x16

There Azure's conversations at ten times their rate take 0.1% less of a simulated v6e's time than with 24 shapes, and 0.8% more of
four v5e (Llama-3.1-8B: `--launch-ms 0 --floor-ms 9.5 --token-us 25` and `5.2`, `34`).

Rows of 64 lose half a row per prompt, 2% of Azure's conversations, and rows of 128 twice that; rows of 16 lose less but read
the context four times as often, so they stay small. Decode and prefill are separate launches: pairs would save 4% of the
simulated device time, but the shapes they need cost the decode ladder its steps, and padding doubles to 9%. Where launches
are dear, plan pairs by hand (`explicit`).
"""

from __future__ import annotations

from collections.abc import Iterator

from buckets.grid import Grid
from buckets.limits import Limits
from buckets.shape import Bucket, StepShape

MAX_SHAPES = 24
MATRIX_ROWS = 8
"""Where tokens are free, decode has at least so many rows: XLA:TPU multiplies fewer on the vector unit. Of Llama-3.1-8B on v6e it
estimates 46 million cycles for one row, and 19 million for eight."""
MAX_DECODE_SHAPES = 14
LONG_ROW = 64
SHORT_ROW = 16
SHORT_TOKENS = (512, 256, 128, 64, 1024)
"""Token places of the buckets with short rows, the most useful first; a single short row comes before all of them."""
COARSE_SHORT_TOKENS = (512, 128)
"""The same where tokens are free."""
DETERMINISTIC_TOKENS = 512
"""Places of the one prefill bucket of deterministic mode: a large matrix already, and not too much for a short prompt."""


def plan_rows(limits: Limits) -> Grid:
    """At most 24 shapes, fewer for small limits, and none larger than the limits can fill, but for `MATRIX_ROWS`."""
    decode = decode_ladder(limits.max_decode_rows, free=limits.free_tokens)
    prefill = prefill_ladder(limits, MAX_SHAPES - len(decode))
    return Grid(
        [*(StepShape(bucket, None) for bucket in prefill), *(StepShape(None, Bucket(rows, 1)) for rows in decode)]
    )


def plan_deterministic(limits: Limits) -> Grid:
    """Exactly one prefill shape and one decode shape: a token's arithmetic is the same in any company.

    Fill with `whole_rows=True` and cut with `cut_rows(..., aligned=True)`.
    """
    beside_decode = max(1, limits.max_num_batched_tokens - limits.max_decode_rows)
    places = min(DETERMINISTIC_TOKENS, beside_decode, limits.max_prefill_tokens)
    seq = min(LONG_ROW, 1 << (min(places, limits.max_model_len).bit_length() - 1))
    rows = decode_ladder(limits.max_decode_rows, free=limits.free_tokens)[-1]
    return Grid([StepShape(Bucket(places // seq, seq), None), StepShape(None, Bucket(rows, 1))])


def decode_ladder(most: int, *, free: int = 1) -> list[int]:
    """Row counts up to `most`: powers of two, then values halfway between from the largest down, at most 14 in all.

    Values within an eighth of `most` are left to it. Where tokens are `free` none is small, or between two small ones.
    """
    least, halved_from = (MATRIX_ROWS, 4 * free) if free > 1 else (1, 8)
    most = max(most, least)
    doubling = [value for value in _doubling(least, most) if value <= most * 7 // 8]
    halfway = [value * 3 // 2 for value in doubling if value >= halved_from and value * 3 // 2 <= most * 7 // 8]
    kept = doubling[-(MAX_DECODE_SHAPES - 1) :]
    spare = MAX_DECODE_SHAPES - 1 - len(kept)
    return sorted({*kept, *sorted(halfway, reverse=True)[:spare], most})


def prefill_ladder(limits: Limits, count: int) -> list[Bucket]:
    """At most `count` buckets, the largest with room for all prompt tokens of a step, chosen in order of importance."""
    top = _bucket(limits.max_prefill_tokens, LONG_ROW, limits)
    coarse = limits.free_tokens > 1
    # Short rows serve prompts of less than a long row: more of them than sequences have no use.
    most_short = min(max(SHORT_TOKENS), LONG_ROW * (1 << (limits.max_num_seqs - 1).bit_length()))
    short = [1, *(places for places in (COARSE_SHORT_TOKENS if coarse else SHORT_TOKENS) if places <= most_short)]
    bulk = [top.tokens, *reversed(list(_doubling(most_short, top.tokens)))]
    between = [] if coarse else [top.tokens * 3 // 4]
    if limits.max_decode_rows * 16 >= top.tokens:
        between.append(top.tokens * 7 // 8)
    buckets = [
        *(_bucket(places, LONG_ROW, limits) for places in bulk),
        *(_bucket(places, SHORT_ROW, limits) for places in short[:2]),
        *(_bucket(places, LONG_ROW, limits) for places in between),
        *(_bucket(places, SHORT_ROW, limits) for places in short[2:]),
    ]
    least = min(limits.free_tokens, top.tokens)
    return list(dict.fromkeys(bucket for bucket in buckets if least <= bucket.tokens <= top.tokens))[:count]


def _bucket(places: int, row: int, limits: Limits) -> Bucket:
    """The bucket of at least `places` token places in rows of at most `row`, none longer than it needs to be."""
    seq = min(row, 1 << (min(limits.max_model_len, max(places, SHORT_ROW)) - 1).bit_length())
    return Bucket(max(1, -(-places // seq)), seq)


def _doubling(first: int, end: int) -> Iterator[int]:
    """`first` and its doubles below `end`."""
    while first < end:
        yield first
        first *= 2
