import pytest

from buckets import Bucket, Limits, StepShape, plan
from buckets.explicit import parse_shape


def limits(*buckets):
    return Limits(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=512, page_size=16, buckets=buckets)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("4x128", StepShape(Bucket(4, 128), None)),
        ("8x1", StepShape(None, Bucket(8, 1))),
        ("4x128+8", StepShape(Bucket(4, 128), Bucket(8, 1))),
        ("4x128+8x1", StepShape(Bucket(4, 128), Bucket(8, 1))),
        (" 1x64 ", StepShape(Bucket(1, 64), None)),
    ],
)
def test_shapes_are_read(text, shape):
    assert parse_shape(text) == shape


@pytest.mark.parametrize("text", ["", "4", "4*128", "4x", "x4", "-4x8", "4x8+", "4x8+8x2", "4.0x8", "4x8 8x1"])
def test_what_is_not_a_shape_is_refused(text):
    with pytest.raises(ValueError, match=r"is not a bucket: write 4x128"):
        parse_shape(text)


def test_a_size_of_zero_is_refused():
    with pytest.raises(ValueError, match="batch=0 seq=8"):
        parse_shape("0x8")


def test_a_grid_is_exactly_what_was_written():
    grid = plan("explicit", limits("4x128", "1x64", "2x1", "8x1", "4x128+8"))
    assert [str(shape) for shape in grid.shapes] == [
        "prefill 4x128 + decode 8",
        "prefill 4x128",
        "prefill 1x64",
        "decode 8",
        "decode 2",
    ]


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ((), "needs buckets, such as 4x128 8x1"),
        (("8x1",), "8x1 have no prefill bucket"),
        (("4x128", "4x1"), "at most 4 decode rows and 8 sequences may run; add 8x1 or lower max_num_seqs"),
        (("4x128",), "at most 0 decode rows"),
    ],
)
def test_a_grid_that_cannot_serve_is_refused(buckets, message):
    with pytest.raises(ValueError, match=message):
        plan("explicit", limits(*buckets))
