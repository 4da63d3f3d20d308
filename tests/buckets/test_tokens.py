import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckets import Limits, plan


def limits(seqs, tokens, length, free=1):
    return Limits(
        max_num_seqs=seqs, max_num_batched_tokens=tokens, max_model_len=length, page_size=16, free_tokens=free
    )


@pytest.mark.parametrize(
    ("seqs", "tokens", "length", "free", "buckets"),
    [
        (256, 2048, 4096, 128, "8x1 32x1 88x1 256x1 256x2 256x3 256x4 256x6 256x8"),
        (64, 512, 4096, 1, "1x1 2x1 4x1 8x1 16x1 32x1 64x1 64x2 64x3 64x5 64x8"),
        (1, 2048, 4096, 128, "8x1 8x4 8x10 8x28 8x85 8x256"),
        (4, 100, 512, 1, "1x1 2x1 4x1 4x3 4x5 4x12 4x25"),
        (1, 1, 1, 1, "1x1"),
    ],
)
def test_examples(seqs, tokens, length, free, buckets):
    grid = plan("tokens", limits(seqs, tokens, length, free))
    assert " ".join(map(str, reversed(grid.buckets))) == buckets


@given(st.integers(1, 4096), st.integers(1, 200_000), st.integers(1, 200_000), st.sampled_from([1, 128]))
def test_a_grid_has_few_buckets_and_none_far_beyond_the_limits(seqs, tokens, length, free):
    bounds = limits(seqs, tokens, length, free)
    grid = plan("tokens", bounds)
    rows = max(bounds.max_rows, 8 if free > 1 else 1)
    assert len(grid) <= (9 if free > 1 else 11)
    assert grid.max_rows == rows
    assert bounds.max_tokens <= grid.max_tokens < max(bounds.max_tokens, rows) + rows
    assert all(bucket.batch == min(rows, bucket.tokens) for bucket in grid.buckets)
    assert min(bucket.batch for bucket in grid.buckets) == (8 if free > 1 else 1)
