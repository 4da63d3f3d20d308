import pytest

from buckets import Bucket, Limits, plan
from buckets.explicit import parse_bucket

LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=512, page_size=16)


@pytest.mark.parametrize(
    ("text", "bucket"), [("4x128", Bucket(4, 128)), ("8x1", Bucket(8, 1)), (" 1x64 ", Bucket(1, 64))]
)
def test_buckets_are_read(text, bucket):
    assert parse_bucket(text) == bucket


@pytest.mark.parametrize("text", ["", "4", "4*128", "4x", "x4", "-4x8", "4x8+", "4x8+8x2", "4.0x8", "4x8 8x1"])
def test_what_is_not_a_bucket_is_refused(text):
    with pytest.raises(ValueError, match=r"is not a bucket: write 4x128"):
        parse_bucket(text)


@pytest.mark.parametrize(("text", "instead"), [("4x128+8", "12x44"), ("4x128+8x1", "12x44"), ("8x2+8", "16x2")])
def test_a_pair_is_told_what_became_of_it(text, instead):
    with pytest.raises(ValueError, match=f"decode and prompts alike: write {instead} for"):
        parse_bucket(text)


def test_a_size_of_zero_is_refused():
    with pytest.raises(ValueError, match="batch=0 seq=8"):
        parse_bucket("0x8")


def test_a_grid_is_exactly_what_was_written():
    grid = plan("explicit", LIMITS, buckets=("4x128", "1x64", "2x1", "8x1"))
    assert grid.buckets == (Bucket(4, 128), Bucket(1, 64), Bucket(8, 1), Bucket(2, 1))


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ((), "needs buckets, such as 4x128 8x1"),
        (("4x128", "4x1"), "at most 4 rows and 8 sequences may decode at once; add 8x1 or lower max_num_seqs"),
    ],
)
def test_a_grid_that_cannot_serve_is_refused(buckets, message):
    with pytest.raises(ValueError, match=message):
        plan("explicit", LIMITS, buckets=buckets)
