import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckets import Bucket, Limits, plan_deterministic


def limits(seqs, tokens, length):
    return Limits(max_num_seqs=seqs, max_num_batched_tokens=tokens, max_model_len=length, page_size=16)


@pytest.mark.parametrize(
    ("seqs", "tokens", "length", "bucket"),
    [
        (256, 2048, 4096, Bucket(256, 2)),
        (64, 512, 4096, Bucket(64, 8)),
        (8, 4096, 4096, Bucket(8, 64)),
        (1024, 4096, 4096, Bucket(1024, 2)),
        (256, 256, 4096, Bucket(256, 1)),
        (2, 4096, 16, Bucket(2, 16)),
        (1, 1, 1, Bucket(1, 1)),
    ],
)
def test_examples(seqs, tokens, length, bucket):
    assert plan_deterministic(limits(seqs, tokens, length)).buckets == (bucket,)


@pytest.mark.parametrize(
    ("seqs", "tokens", "length", "bucket"),
    [
        (256, 2048, 4096, Bucket(256, 2)),
        (256, 256, 4096, Bucket(256, 2)),
        (4, 16, 4096, Bucket(4, 33)),
        (4, 16, 32, Bucket(4, 9)),
    ],
)
def test_a_share_that_prompts_have_of_right(seqs, tokens, length, bucket):
    """Beside all other rows; no more than a prompt can have."""
    assert plan_deterministic(limits(seqs, tokens, length), least_share=129).buckets == (bucket,)


@given(st.integers(1, 1024), st.integers(1, 16384), st.integers(1, 40000))
def test_one_bucket_with_a_row_for_every_sequence_within_the_budget(seqs, tokens, length):
    bounds = limits(seqs, tokens, length)
    (bucket,) = plan_deterministic(bounds).buckets
    assert bucket.batch == bounds.max_rows
    assert bucket.tokens <= tokens
