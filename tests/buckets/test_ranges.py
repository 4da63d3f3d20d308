import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckets import exponential_range, linear_range, pad_to_range
from buckets.ranges import check_lengths


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ((2, 32, 64), (2, 4, 8, 16, 32, 64)),
        ((128, 128, 512), (128, 256, 384, 512)),
        ((1, 32, 4), (1, 2, 4)),
        ((1, 128, 4), (1, 2, 4)),
        ((3, 8, 24), (3, 6, 8, 16, 24)),
        ((1, 32, 100), (1, 2, 4, 8, 16, 32, 64, 96)),
        ((64, 32, 128), (64, 96, 128)),
        ((1, 1, 3), (1, 2, 3)),
        ((0, 4, 12), (0, 4, 8, 12)),
        ((5, 8, 5), (5,)),
    ],
)
def test_linear_range(arguments, values):
    assert linear_range(*arguments) == values


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ((128, 128, 2048, 10), (128, 256, 384, 512, 640, 896, 1152, 1536, 2048)),
        ((128, 128, 4096, 13), (128, 256, 384, 512, 640, 768, 1024, 1408, 1792, 2304, 3072, 4096)),
        ((1, 2, 256, 9), (1, 2, 4, 8, 14, 24, 42, 78, 140, 256)),
        ((0, 4, 16, 3), (0, 4, 8, 16)),
        ((1, 2, 1, 5), (1,)),
        ((1, 2, 3, 4), (1, 2, 3)),
        ((128, 128, 1000, 1), (1000,)),
        ((100, 64, 1000, 4), (128, 256, 512, 1000)),
    ],
)
def test_exponential_range(arguments, values):
    assert exponential_range(*arguments) == values


@pytest.mark.parametrize(
    ("value", "minimum", "step", "padded"),
    [
        (3, 1, 32, 4),
        (412, 128, 128, 512),
        (5, 1, 32, 8),
        (1100, 128, 128, 1152),
        (1, 128, 128, 128),
        (128, 128, 128, 128),
        (33, 1, 32, 64),
        (20, 1, 32, 32),
        (7, 3, 8, 8),
    ],
)
def test_pad_to_range(value, minimum, step, padded):
    assert pad_to_range(value, minimum, step) == padded


@given(st.integers(1, 600), st.integers(0, 6), st.integers(0, 5))
def test_a_value_pads_to_the_smallest_of_the_linear_range(value, min_exponent, more):
    """For a minimum that doubles into the step, as all of the documents' do, padding and range agree."""
    minimum, step = 2**min_exponent, 2 ** (min_exponent + more)
    values = linear_range(minimum, step, 1024)
    assert pad_to_range(value, minimum, step) == next(bucket for bucket in values if bucket >= value)


@pytest.mark.parametrize("arguments", [(-1, 2, 4), (1, 0, 4), (8, 2, 4), (0, 2, 0)])
def test_ranges_that_are_out_of_order_are_refused(arguments):
    with pytest.raises(ValueError, match=r"0 <= min <= max"):
        linear_range(*arguments)
    with pytest.raises(ValueError, match=r"0 <= min <= max"):
        exponential_range(*arguments, 4)


def test_an_exponential_range_needs_a_limit():
    with pytest.raises(ValueError, match="got 0"):
        exponential_range(1, 2, 4, 0)


@pytest.mark.parametrize(("minimum", "step"), [(0, 1), (1, 0)])
def test_padding_needs_a_minimum_and_a_step(minimum, step):
    with pytest.raises(ValueError, match=f"got {minimum} and {step}"):
        pad_to_range(3, minimum, step)


@given(st.integers(0, 300), st.integers(1, 300), st.integers(0, 3000), st.integers(1, 20))
def test_ranges_rise_to_their_maximum(minimum, step, more, limit):
    maximum = max(1, minimum + more)
    linear, exponential = linear_range(minimum, step, maximum), exponential_range(minimum, step, maximum, limit)
    for values in (linear, exponential):
        assert list(values) == sorted(set(values))
        assert all(minimum <= value <= maximum for value in values)
    assert exponential[-1] == maximum
    assert len(exponential) <= limit + 1


def test_a_range_of_the_wrong_length_is_refused():
    check_lengths(3, prefill_batch_range=(1, 2, 3), decode_batch_range=None)
    with pytest.raises(
        ValueError, match=r"prefill_batch_range must be 4 numbers \(min,step,max,count\).*got \(1, 2, 3\)"
    ):
        check_lengths(4, prefill_batch_range=(1, 2, 3))
