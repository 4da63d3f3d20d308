import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckets import PLANNERS, Bucket, Limits, StepShape, plan, plan_deterministic

SMALL = Limits(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=512, page_size=16, buckets=("4x128", "8x1"))

LIMITS = st.builds(
    lambda seqs, tokens, length, page: Limits(
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, tokens),
        max_model_len=length,
        page_size=page,
        buckets=("4x128", f"{seqs}x1"),
    ),
    st.integers(1, 1024),
    st.integers(1, 16384),
    st.integers(1, 40000),
    st.sampled_from([1, 16, 128]),
)


@pytest.mark.parametrize("name", PLANNERS)
@given(limits=LIMITS)
def test_every_grid_holds_what_the_limits_allow(name, limits):
    grid = plan(name, limits)
    assert grid.fit_decode(limits.max_decode_rows).batch >= limits.max_decode_rows
    fill = grid.fill_prefill([limits.max_model_len] * limits.max_num_seqs, max_tokens=limits.max_num_batched_tokens)
    assert sum(fill.takes) > 0


def test_an_unknown_planner_lists_the_known_ones():
    with pytest.raises(ValueError, match="'row'; known are rows, linear, exponential, explicit"):
        plan("row", SMALL)


@given(LIMITS)
def test_a_deterministic_grid_is_one_prefill_and_one_decode_shape(limits):
    grid = plan_deterministic(limits)
    assert len(grid) == 2
    (prefill,), (decode,) = grid.prefill_buckets, grid.decode_buckets
    assert decode == Bucket(limits.max_decode_rows, 1)
    assert prefill.tokens <= limits.max_num_batched_tokens
    assert prefill.tokens <= 512
    assert grid.has(StepShape(prefill, None))
    assert not grid.has(StepShape(prefill, decode))


def test_a_deterministic_grid_leaves_room_for_decoding():
    assert str(plan_deterministic(SMALL).prefill_buckets[0]) == "7x64"
