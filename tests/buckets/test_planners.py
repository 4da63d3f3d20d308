import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckets import OPTIONS, PLANNERS, Limits, plan, plan_deterministic

SMALL = Limits(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=512, page_size=16)

LIMITS = st.builds(
    lambda seqs, tokens, length, page, free: Limits(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=length,
        page_size=page,
        free_tokens=free,
    ),
    st.integers(1, 1024),
    st.integers(1, 16384),
    st.integers(1, 40000),
    st.sampled_from([1, 16, 128]),
    st.sampled_from([1, 128]),
)


@pytest.mark.parametrize("planner", [*PLANNERS, "deterministic"])
@given(limits=LIMITS)
def test_every_grid_holds_what_the_limits_allow(planner, limits):
    options = {"buckets": ("4x128", f"{limits.max_num_seqs}x1")} if planner == "explicit" else {}
    grid = plan_deterministic(limits) if planner == "deterministic" else plan(planner, limits, **options)
    rows = limits.max_rows
    assert grid.fill(rows, rows, [], max_tokens=limits.max_num_batched_tokens).takes == ()
    beside = grid.fill(rows - 1, rows - 1, [limits.max_model_len], max_tokens=limits.max_num_batched_tokens)
    assert sum(beside.takes) > 0


def test_an_unknown_planner_lists_the_known_ones():
    with pytest.raises(ValueError, match="'row'; known are tokens, linear, exponential, explicit"):
        plan("row", SMALL)


def test_the_options_of_a_planner_are_its_arguments():
    ranges = {"prefill_batch_range", "prefill_seq_range", "decode_batch_range"}
    assert {"tokens": set(), "linear": ranges, "exponential": ranges, "explicit": {"buckets"}} == OPTIONS
    with pytest.raises(
        ValueError, match="buckets says nothing to the linear planner; leave it out, or choose bucket_planner explicit"
    ):
        plan("linear", SMALL, buckets=("4x128",))
    with pytest.raises(ValueError, match="choose bucket_planner linear or exponential"):
        plan("tokens", SMALL, decode_batch_range=(1, 2, 3))
    assert plan("tokens", SMALL, buckets=None).buckets == plan("tokens", SMALL).buckets
