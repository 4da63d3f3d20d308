import pytest

from buckets import Bucket, Limits, plan
from buckets.linear import linear_buckets

LIMITS = Limits(max_num_seqs=4, max_num_batched_tokens=8192, max_model_len=2048, page_size=128)
PROMPT = linear_buckets((1, 32, 4), (128, 128, 1024))
DECODE = linear_buckets((1, 128, 4), (128, 128, 2048))


def test_the_24_prompt_buckets_of_the_documents():
    assert [(bucket.batch, bucket.seq) for bucket in PROMPT] == [
        *[(1, 128), (1, 256), (1, 384), (1, 512), (1, 640), (1, 768), (1, 896), (1, 1024)],
        *[(2, 128), (2, 256), (2, 384), (2, 512), (2, 640), (2, 768), (2, 896), (2, 1024)],
        *[(4, 128), (4, 256), (4, 384), (4, 512), (4, 640), (4, 768), (4, 896), (4, 1024)],
    ]


def test_the_48_decode_buckets_of_the_documents():
    lengths = [128, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536, 1664, 1792, 1920, 2048]
    assert [(bucket.batch, bucket.seq) for bucket in DECODE] == [(b, s) for b in (1, 2, 4) for s in lengths]


def test_buckets_beyond_the_token_budget_are_left_out():
    kept = linear_buckets((1, 32, 4), (128, 128, 1024), max_tokens=1024)
    assert max(bucket.tokens for bucket in kept) == 1024
    assert Bucket(4, 256) in kept
    assert Bucket(4, 384) not in kept


def test_all_are_kept_when_none_fits_the_token_budget():
    assert linear_buckets((1, 32, 4), (128, 128, 1024), max_tokens=64) == PROMPT


def test_the_grid_has_the_documents_rectangles_and_drops_the_context_axis():
    grid = plan(
        "linear",
        Limits(
            max_num_seqs=4,
            max_num_batched_tokens=8192,
            max_model_len=2048,
            page_size=128,
        ),
        prefill_batch_range=(1, 32, 4),
        prefill_seq_range=(128, 128, 1024),
        decode_batch_range=(1, 128, 4),
    )
    assert sorted(grid.buckets) == sorted([*PROMPT, *(Bucket(rows, 1) for rows in {bucket.batch for bucket in DECODE})])


def test_defaults_are_those_of_the_documents():
    rectangles = linear_buckets((1, 4, 4), (128, 128, 2048), max_tokens=8192)
    assert sorted(plan("linear", LIMITS).buckets) == sorted([*rectangles, Bucket(1, 1), Bucket(2, 1), Bucket(4, 1)])


NINE = Limits(max_num_seqs=9, max_num_batched_tokens=512, max_model_len=256, page_size=16)


def test_every_running_sequence_can_decode_whatever_range_is_given():
    assert [
        bucket.batch for bucket in plan("linear", NINE, decode_batch_range=(0, 4, 8)).buckets if bucket.seq == 1
    ] == [9, 8, 4]


def test_prompts_go_on_beside_every_sequence_that_decodes():
    grid = plan("linear", NINE, prefill_batch_range=(1, 4, 4))
    assert grid.fill(8, 8, [1000], max_tokens=512).takes == (504,)
    assert [str(bucket) for bucket in grid.buckets if bucket.batch == 9] == ["9x57", "9x1"]


def test_a_range_of_four_numbers_is_refused():
    with pytest.raises(ValueError, match="decode_batch_range must be 3 numbers"):
        plan("linear", NINE, decode_batch_range=(1, 4, 8, 3))
