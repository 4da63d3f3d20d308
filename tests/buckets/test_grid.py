import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckets import Bucket, BucketOverflow, Fill, Grid, Limits, StepShape, plan


def grid(*prefill, decode=(1, 4)):
    """A grid of prefill `(batch, seq)` and decode row counts."""
    return Grid(
        [
            *(StepShape(Bucket(*sizes), None) for sizes in prefill),
            *(StepShape(None, Bucket(rows, 1)) for rows in decode),
        ]
    )


def test_shapes_are_sorted_largest_first_and_listed_once():
    shapes = grid((1, 16), (4, 64), (1, 16), decode=(8, 2)).shapes
    assert [str(shape) for shape in shapes] == ["prefill 4x64", "prefill 1x16", "decode 8", "decode 2"]


def test_a_pair_brings_its_pure_shapes():
    pair = StepShape(Bucket(4, 64), Bucket(8, 1))
    made = Grid([pair])
    assert made.has(pair)
    assert [str(shape) for shape in made.shapes] == ["prefill 4x64 + decode 8", "prefill 4x64", "decode 8"]
    assert len(made) == 3


def test_a_pair_that_is_not_planned_is_not_had():
    assert not grid((4, 64)).has(StepShape(Bucket(4, 64), Bucket(4, 1)))


def test_buckets_and_limits():
    made = grid((1, 16), (4, 64), (16, 16), decode=(8, 2))
    assert made.prefill_buckets == (Bucket(4, 64), Bucket(16, 16), Bucket(1, 16))
    assert made.decode_buckets == (Bucket(2, 1), Bucket(8, 1))
    assert made.max_decode_rows == 8
    assert made.max_prefill_tokens == 256


def test_a_grid_without_prefill_or_decode():
    assert grid().max_prefill_tokens == 0
    assert grid().fill_prefill([5], max_tokens=9) is None
    assert grid((1, 8), decode=()).max_decode_rows == 0


def test_an_empty_grid_is_refused():
    with pytest.raises(ValueError, match="at least one step shape"):
        Grid([])


def test_a_grid_shows_its_shapes():
    assert repr(grid((4, 64), decode=(8,))) == "Grid(prefill 4x64, decode 8)"


@pytest.mark.parametrize(("rows", "batch"), [(1, 1), (2, 4), (4, 4), (5, 16), (16, 16)])
def test_decode_rows_take_the_smallest_bucket_that_holds_them(rows, batch):
    assert grid(decode=(16, 1, 4)).fit_decode(rows) == Bucket(batch, 1)


def test_too_many_decode_rows_are_named():
    with pytest.raises(BucketOverflow, match=r"17 decode rows do not fit .* 16 rows"):
        grid(decode=(16, 1, 4)).fit_decode(17)


@pytest.mark.parametrize(
    ("lengths", "fill"),
    [
        ([300], Fill(Bucket(4, 64), (256,))),
        ([200], Fill(Bucket(4, 64), (200,))),
        ([70], Fill(Bucket(1, 64), (64,))),
        ([64], Fill(Bucket(1, 64), (64,))),
        ([3], Fill(Bucket(1, 64), (3,))),
        ([100, 100, 100], Fill(Bucket(4, 64), (100, 100, 0))),
        ([100, 200, 5], Fill(Bucket(4, 64), (100, 128, 0))),
        ([60, 60, 60, 60, 60], Fill(Bucket(4, 64), (60, 60, 60, 60, 0))),
        ([0, 200, 0], Fill(Bucket(4, 64), (0, 200, 0))),
        ([0, 0], None),
        ([], None),
    ],
)
def test_fill_examples(lengths, fill):
    assert grid((4, 64), (1, 64)).fill_prefill(lengths, max_tokens=1000) == fill


@pytest.mark.parametrize(
    ("max_tokens", "takes"),
    [
        (256, (256, 0)),
        (255, (192, 0)),
        (200, (192, 0)),
        (100, (64, 0)),
        (64, (64, 0)),
        (40, (40, 0)),
        (1, (1, 0)),
        (0, None),
    ],
)
def test_a_budget_cuts_at_a_rows_end_where_it_can(max_tokens, takes):
    fill = grid((4, 64), (1, 64)).fill_prefill([300, 20], max_tokens=max_tokens)
    assert (fill and fill.takes) == takes


@pytest.mark.parametrize(("max_tokens", "takes"), [(256, (192, 64)), (255, (192, 0)), (64, (64, 0)), (63, None)])
def test_whole_rows_are_cut_nowhere_else(max_tokens, takes):
    fill = grid((4, 64)).fill_prefill([192, 100], max_tokens=max_tokens, whole_rows=True)
    assert (fill and fill.takes) == takes


def test_whole_rows_let_a_prompt_end_in_a_row():
    assert grid((4, 64)).fill_prefill([70], max_tokens=256, whole_rows=True) == Fill(Bucket(4, 64), (70,))


def test_many_short_prompts_take_short_rows_and_long_ones_long_rows():
    made = grid((16, 64), (64, 16))
    assert made.fill_prefill([12] * 100, max_tokens=2048) == Fill(Bucket(64, 16), (12,) * 64 + (0,) * 36)
    assert made.fill_prefill([1024], max_tokens=2048) == Fill(Bucket(16, 64), (1024,))


LENGTHS = st.lists(st.integers(0, 400), max_size=30)
GRIDS = st.sampled_from(
    [
        grid((4, 64), (1, 64)),
        grid((64, 16), (16, 64), (1, 16)),
        grid((1, 1)),
        plan("rows", Limits(max_num_seqs=32, max_num_batched_tokens=512, max_model_len=512, page_size=16)),
        plan("linear", Limits(max_num_seqs=4, max_num_batched_tokens=512, max_model_len=512, page_size=16)),
    ]
)


@given(GRIDS, LENGTHS, st.integers(-1, 600), st.booleans())
def test_every_fill_fits_its_bucket_and_serves_in_order(made, lengths, max_tokens, whole_rows):
    fill = made.fill_prefill(lengths, max_tokens=max_tokens, whole_rows=whole_rows)
    waiting = [length for length in lengths if length]
    if fill is None:
        shortest = min((bucket.seq for bucket in made.prefill_buckets), default=0)
        assert max_tokens < 1 or not waiting or (whole_rows and max_tokens < min(waiting[0], shortest))
        return
    seq = fill.bucket.seq
    assert fill.bucket in made.prefill_buckets
    assert len(fill.takes) == len(lengths)
    assert 0 < sum(fill.takes) <= max_tokens
    assert all(0 <= take <= length for take, length in zip(fill.takes, lengths, strict=True))
    assert sum(-(-take // seq) for take in fill.takes) <= fill.bucket.batch
    served = [(take, length) for take, length in zip(fill.takes, lengths, strict=True) if length]
    assert served[0][0] > 0, "the most urgent prompt goes on"
    cut = next((i for i, (take, length) in enumerate(served) if take < length), len(served))
    assert not any(take for take, _ in served[cut + 1 :]), "nobody overtakes a prompt that was cut"
    if whole_rows and cut < len(served):
        assert served[cut][0] % seq == 0


@given(GRIDS, LENGTHS)
def test_everything_is_served_in_the_end(made, lengths):
    left, steps = list(lengths), 0
    while any(left):
        fill = made.fill_prefill(left, max_tokens=300)
        left = [length - take for length, take in zip(left, fill.takes, strict=True)]
        steps += 1
    assert steps <= sum(lengths)
