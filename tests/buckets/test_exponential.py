import pytest

from buckets import Bucket, Limits, plan

LIMITS = Limits(max_num_seqs=4, max_num_batched_tokens=1024, max_model_len=2048, page_size=16)


def test_defaults():
    grid = plan("exponential", LIMITS)
    rectangles = [bucket for bucket in grid.buckets if bucket.seq > 1]
    assert {bucket.seq for bucket in rectangles} == {128, 256, 384, 512, 768, 896, 1024}
    assert {bucket.batch for bucket in rectangles} == {1, 2, 4}
    assert grid.max_tokens == 1024
    assert [bucket for bucket in grid.buckets if bucket.seq == 1] == [Bucket(4, 1), Bucket(2, 1), Bucket(1, 1)]


def test_given_ranges():
    grid = plan(
        "exponential",
        LIMITS,
        prefill_batch_range=(1, 1, 4, 2),
        prefill_seq_range=(64, 64, 256, 3),
        decode_batch_range=(1, 2, 2, 2),
    )
    assert " ".join(map(str, grid.buckets)) == "4x256 4x128 4x64 1x256 1x128 1x64 4x1 2x1 1x1"


def test_a_grid_without_prefill_is_refused():
    with pytest.raises(ValueError, match=r"no prefill bucket .* max_num_batched_tokens=1024"):
        plan("exponential", LIMITS, prefill_seq_range=(2048, 128, 4096, 3))


def test_a_range_of_three_numbers_is_refused():
    with pytest.raises(ValueError, match="prefill_seq_range must be 4 numbers"):
        plan("exponential", LIMITS, prefill_seq_range=(64, 64, 256))
