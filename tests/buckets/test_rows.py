import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckets import Limits, plan
from buckets.rows import decode_ladder


def limits(seqs, tokens, length, free=1):
    return Limits(
        max_num_seqs=seqs, max_num_batched_tokens=tokens, max_model_len=length, page_size=16, free_tokens=free
    )


def shapes(grid):
    return " ".join(map(str, reversed(grid.prefill_buckets))), [bucket.batch for bucket in grid.decode_buckets]


@pytest.mark.parametrize(
    ("seqs", "tokens", "length", "prefill", "decode"),
    [
        (
            *(256, 2048, 4096),
            "1x16 4x16 8x16 16x16 32x16 64x16 16x64 24x64 28x64 32x64",
            [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256],
        ),
        (8, 512, 512, "1x16 4x16 8x16 16x16 6x64 32x16 8x64", [1, 2, 4, 8]),
        (1, 2048, 64, "1x16 4x16 1x64", [1]),
        (4, 100, 512, "1x16 4x16 8x16 2x64", [1, 2, 4]),
        (2, 16, 8, "1x8 2x8", [1, 2]),
        (1, 1, 1, "1x1", [1]),
    ],
)
def test_examples(seqs, tokens, length, prefill, decode):
    assert shapes(plan("rows", limits(seqs, tokens, length))) == (prefill, decode)


@pytest.mark.parametrize(
    ("seqs", "tokens", "length", "prefill", "decode"),
    [
        (256, 2048, 4096, "8x16 32x16 16x64 28x64 32x64", [8, 16, 32, 64, 128, 256]),
        (1024, 4096, 4096, "8x16 32x16 16x64 32x64 56x64 64x64", [8, 16, 32, 64, 128, 256, 512, 768, 1024]),
        (64, 512, 4096, "8x16 7x64 32x16 8x64", [8, 16, 32, 64]),
        (1, 2048, 4096, "2x64 4x64 8x64 16x64 32x64", [8]),
        (2, 16, 8, "2x8", [8]),
    ],
)
def test_where_the_first_tokens_are_free_few_shapes_are_small(seqs, tokens, length, prefill, decode):
    assert shapes(plan("rows", limits(seqs, tokens, length, free=128))) == (prefill, decode)


@given(st.integers(1, 4096), st.integers(1, 200_000), st.integers(1, 200_000))
def test_where_the_first_tokens_are_free_a_grid_holds_the_same_work(seqs, tokens, length):
    bounds = limits(seqs, tokens, length, free=128)
    grid = plan("rows", bounds)
    assert len(grid) <= 24
    assert grid.max_prefill_tokens >= bounds.max_prefill_tokens
    assert grid.max_decode_rows == max(8, bounds.max_decode_rows)
    assert min(bucket.batch for bucket in grid.decode_buckets) >= 8
    assert min(bucket.tokens for bucket in grid.prefill_buckets) >= min(128, grid.max_prefill_tokens)


@given(st.integers(1, 4096), st.integers(1, 200_000), st.integers(1, 200_000))
def test_a_grid_has_at_most_24_shapes_and_none_beyond_the_limits(seqs, tokens, length):
    bounds = limits(seqs, tokens, length)
    grid = plan("rows", bounds)
    assert len(grid) <= 24
    assert bounds.max_prefill_tokens <= grid.max_prefill_tokens < bounds.max_prefill_tokens + 64
    assert grid.max_decode_rows == bounds.max_decode_rows
    assert all(bucket.seq < 2 * length for bucket in grid.prefill_buckets)


@given(st.integers(1, 256))
def test_decode_rows_are_padded_by_less_than_themselves(rows):
    bucket = plan("rows", limits(256, 2048, 4096)).fit_decode(rows)
    assert bucket.batch < 2 * rows or rows == 1


@pytest.mark.parametrize(
    ("most", "ladder"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (9, [1, 2, 4, 9]),
        (16, [1, 2, 4, 8, 12, 16]),
        (100, [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 100]),
        (1024, [1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024]),
        (1 << 16, [8 << shift for shift in range(14)]),
    ],
)
def test_decode_ladder(most, ladder):
    assert decode_ladder(most) == ladder
