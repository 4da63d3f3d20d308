import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckets import Bucket, BucketOverflow, Fill, Grid, Limits, plan
from buckets.grid import WORTH


def grid(*sizes, costs=None):
    """A grid of `(batch, seq)`, with costs by token places."""
    buckets = [Bucket(*size) for size in sizes]
    return Grid(buckets, None if costs is None else {bucket: costs[bucket.tokens] for bucket in buckets})


def test_buckets_are_sorted_largest_first_and_listed_once():
    made = grid((1, 16), (4, 64), (1, 16), (16, 16), (8, 1))
    assert [str(bucket) for bucket in made.buckets] == ["16x16", "4x64", "1x16", "8x1"]
    assert (len(made), made.max_rows, made.max_tokens) == (4, 16, 256)
    assert Bucket(4, 64) in made.buckets
    assert Bucket(64, 4) not in made.buckets
    assert repr(made) == "Grid(16x16, 4x64, 1x16, 8x1)"


def test_an_empty_grid_is_refused():
    with pytest.raises(ValueError, match="at least one bucket"):
        Grid([])


@pytest.mark.parametrize("costs", [{}, {Bucket(4, 64): 0.0}, {Bucket(4, 64): float("nan")}])
def test_a_bucket_without_a_cost_is_named(costs):
    with pytest.raises(ValueError, match=r"cost above 0; there is none for 4x64"):
        Grid([Bucket(4, 64)], costs)


def test_costs_can_be_replaced():
    made = grid((8, 1), (8, 8))
    dear = made.with_costs({Bucket(8, 1): 1.0, Bucket(8, 8): 100.0, Bucket(9, 9): 1.0})
    assert dear.costs == {Bucket(8, 1): 1.0, Bucket(8, 8): 100.0}
    assert made.fill(1, 1, [100], max_tokens=64).bucket == Bucket(8, 8)
    assert dear.fill(1, 1, [100], max_tokens=64).bucket == Bucket(8, 1)


@pytest.mark.parametrize(
    ("rows", "tokens", "waiting", "fill"),
    [
        (1, 1, [300], Fill(Bucket(4, 64), (255,))),
        (1, 1, [200], Fill(Bucket(4, 64), (200,))),
        (1, 1, [70], Fill(Bucket(4, 16), (63,))),
        (1, 1, [], Fill(Bucket(4, 16), ())),
        (4, 4, [300], Fill(Bucket(4, 16), (0,))),
        (3, 3, [190, 100], Fill(Bucket(4, 64), (190, 0))),
        (2, 130, [], Fill(Bucket(4, 64), ())),
        (0, 0, [60, 60, 60, 60, 60], Fill(Bucket(4, 64), (60, 60, 60, 60, 0))),
        (0, 0, [3], Fill(Bucket(4, 16), (3,))),
        (0, 0, [], None),
    ],
)
def test_fill_examples(rows, tokens, waiting, fill):
    assert grid((4, 64), (4, 16)).fill(rows, tokens, waiting, max_tokens=1000) == fill


@pytest.mark.parametrize(
    ("max_tokens", "takes"), [(256, (254, 0)), (100, (98, 0)), (3, (1, 0)), (2, (0, 0)), (1, (0, 0)), (0, (0, 0))]
)
def test_what_must_go_in_counts_towards_the_budget(max_tokens, takes):
    assert grid((4, 64)).fill(2, 2, [300, 20], max_tokens=max_tokens).takes == takes


def test_a_budget_of_nothing_leaves_prompts_waiting():
    assert grid((4, 64)).fill(0, 0, [300], max_tokens=0) is None


@pytest.mark.parametrize(("rows", "tokens"), [(9, 9), (5, 9), (2, 257)])
def test_what_fits_no_bucket_is_named(rows, tokens):
    with pytest.raises(BucketOverflow, match=f"{rows} rows with {tokens} tokens fit none of 4x64, 8x1"):
        grid((4, 64), (8, 1)).fill(rows, tokens, [], max_tokens=1000)


def test_the_most_real_tokens_for_their_cost_win():
    costs = {64: 9.5, 128: 9.5, 256: 9.5, 512: 12.8}
    made = grid((64, 1), (128, 1), (256, 1), (256, 2), costs=costs)
    assert made.fill(40, 40, [], max_tokens=2048).bucket == Bucket(64, 1), "the smaller of two that are equal"
    assert made.fill(40, 40, [150], max_tokens=2048) == Fill(Bucket(256, 1), (150,))
    assert made.fill(40, 40, [230], max_tokens=2048) == Fill(Bucket(256, 1), (216,)), (
        "270 in 12.8 are fewer than 256 in 9.5"
    )
    assert made.fill(40, 40, [400], max_tokens=2048) == Fill(Bucket(256, 2), (400,))


@pytest.mark.parametrize(("cost", "bucket"), [(196.0, Bucket(8, 8)), (180.0, Bucket(8, 16))])
def test_a_larger_bucket_has_to_be_worth_the_longer_step(cost, bucket):
    made = grid((8, 8), (8, 16), costs={64: 100.0, 128: cost})
    assert made.fill(1, 1, [1000], max_tokens=1000).bucket == bucket


def test_a_prompt_goes_on_even_if_decoding_alone_were_cheaper():
    made = grid((4, 1), (4, 4), costs={4: 1.0, 16: 100.0})
    assert made.fill(4, 4, [50], max_tokens=16) == Fill(Bucket(4, 1), (0,)), "no row is left for it"
    assert grid((4, 1), (8, 4), costs={4: 1.0, 32: 100.0}).fill(4, 4, [50], max_tokens=32).takes == (28,)


GRIDS = st.sampled_from(
    [
        grid((4, 64), (1, 64), (8, 1)),
        grid((64, 16), (16, 64), (1, 16)),
        grid((1, 1)),
        *(
            plan(name, Limits(max_num_seqs=32, max_num_batched_tokens=512, max_model_len=512, page_size=16))
            for name in ("tokens", "linear", "exponential")
        ),
    ]
)


@given(GRIDS, st.integers(0, 64), st.lists(st.integers(1, 400), max_size=60), st.integers(-1, 600))
def test_every_fill_fits_its_bucket_and_serves_in_order(made, rows, waiting, max_tokens):
    if rows > made.max_rows:
        with pytest.raises(BucketOverflow):
            made.fill(rows, rows, waiting, max_tokens=max_tokens)
        return
    fill = made.fill(rows, rows, waiting, max_tokens=max_tokens)
    if fill is None:
        assert rows == 0
        assert max_tokens < 1 or not waiting
        return
    assert fill.bucket in made.buckets
    assert all(0 <= take <= left for take, left in zip(fill.takes, waiting, strict=True))
    taken = sum(take > 0 for take in fill.takes)
    assert rows + taken <= fill.bucket.batch
    assert rows + sum(fill.takes) <= min(fill.bucket.tokens, max(max_tokens, rows))
    assert fill.takes[: taken - 1] == tuple(waiting[: taken - 1]) or not taken, "nobody overtakes a prompt that was cut"
    if waiting and not taken:
        assert max_tokens <= rows or all(bucket.batch <= rows or bucket.tokens <= rows for bucket in made.buckets)


@given(GRIDS, st.integers(0, 32), st.lists(st.integers(1, 400), max_size=40), st.integers(1, 600))
def test_no_other_bucket_has_many_more_real_tokens_for_its_cost(made, rows, waiting, max_tokens):
    rows = min(rows, made.max_rows - 1)
    fill = made.fill(rows, rows, waiting, max_tokens=max_tokens)
    if fill is None or not any(fill.takes):
        return

    def score(bucket):
        prompts = waiting[: bucket.batch - rows] if bucket.batch > rows else []
        return min(rows + sum(prompts), bucket.tokens, max_tokens) / made.costs[bucket]

    assert score(fill.bucket) * WORTH >= max(
        score(bucket) for bucket in made.buckets if bucket.batch > rows and bucket.tokens > rows
    )
