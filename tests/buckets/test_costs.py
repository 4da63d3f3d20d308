from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckets import Bucket, corrected, estimated

SMALL, MIDDLE, LARGE = Bucket(8, 1), Bucket(8, 8), Bucket(8, 64)


def test_a_step_lasts_as_long_as_reading_or_computing():
    costs = estimated([SMALL, MIDDLE, LARGE], floor_s=0.01, token_s=0.0001, launch_s=0.001)
    assert costs == pytest.approx({SMALL: 0.011, MIDDLE: 0.011, LARGE: 0.0522})


def test_what_was_measured_counts_and_the_rest_is_scaled_like_its_neighbour():
    costs = corrected({SMALL: 1.0, MIDDLE: 2.0, LARGE: 8.0}, {SMALL: 3.0, LARGE: 10.0, Bucket(9, 9): 1.0})
    assert costs == {SMALL: 3.0, MIDDLE: 6.0, LARGE: 10.0}


def test_an_estimate_stays_where_nothing_was_measured():
    assert corrected({SMALL: 1.0}, {}) == {SMALL: 1.0}


def test_noise_makes_no_larger_bucket_cheaper():
    assert corrected({SMALL: 1, MIDDLE: 1, LARGE: 1}, {SMALL: 3.0, MIDDLE: 2.0, LARGE: 9.0}) == {
        SMALL: 2.5,
        MIDDLE: 2.5,
        LARGE: 9.0,
    }


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match="8x1"):
        corrected({SMALL: 1.0}, {SMALL: seconds})


@given(st.dictionaries(st.builds(Bucket, st.integers(1, 9), st.integers(1, 9)), st.floats(0.001, 10), min_size=1))
def test_costs_rise_with_places_and_rows_and_keep_their_sum(seconds):
    costs = corrected(dict.fromkeys(seconds, 1.0), seconds)
    ordered = [costs[bucket] for bucket in sorted(costs, key=lambda bucket: (bucket.tokens, bucket.batch))]
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(ordered))
    assert sum(ordered) == pytest.approx(sum(seconds.values()))
