import pytest

from buckets import Bucket, StepShape


def test_a_bucket_counts_its_places():
    assert Bucket(4, 128).tokens == 512
    assert str(Bucket(4, 128)) == "4x128"


@pytest.mark.parametrize(("batch", "seq"), [(0, 1), (1, 0), (-1, 4)])
def test_a_bucket_has_a_place(batch, seq):
    with pytest.raises(ValueError, match=f"batch={batch} seq={seq}"):
        Bucket(batch, seq)


@pytest.mark.parametrize(
    ("prefill", "decode", "rows", "tokens", "text"),
    [
        (Bucket(4, 128), None, 4, 512, "prefill 4x128"),
        (None, Bucket(8, 1), 8, 8, "decode 8"),
        (Bucket(4, 128), Bucket(8, 1), 12, 520, "prefill 4x128 + decode 8"),
    ],
)
def test_a_step_shape_adds_up_both_buckets(prefill, decode, rows, tokens, text):
    shape = StepShape(prefill, decode)
    assert (shape.rows, shape.tokens, str(shape)) == (rows, tokens, text)


def test_a_step_runs_something():
    with pytest.raises(ValueError, match="a prefill bucket, a decode bucket or both"):
        StepShape(None, None)


def test_decode_is_one_token_per_row():
    with pytest.raises(ValueError, match="seq 1, got 8x2"):
        StepShape(None, Bucket(8, 2))
