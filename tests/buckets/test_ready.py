"""Some buckets are ready before others: all work fits at any time, and what is asked for most becomes ready first."""

from __future__ import annotations

import pytest

from buckets import Bucket, Grid, Limits, ReadyShapes, covering, plan
from buckets.planners import PLANNERS

BUCKETS = [Bucket(1, 1), Bucket(4, 1), Bucket(8, 1), Bucket(8, 4), Bucket(8, 32)]
ONE, FOUR, EIGHT, MIXED, LARGE = BUCKETS
GRID = Grid(BUCKETS)


def test_the_smallest_bucket_with_all_rows_covers_all_work():
    assert covering(GRID) == (EIGHT,)


@pytest.mark.parametrize("planner", [name for name in PLANNERS if name != "explicit"])
def test_any_work_of_any_planner_fits_what_covers_it(planner):
    grid = plan(planner, Limits(max_num_seqs=32, max_num_batched_tokens=512, max_model_len=2048, page_size=16))
    small = ReadyShapes(grid, covering(grid)).grid
    assert len(small) == 1
    for rows in range(32):
        assert sum(small.fill(rows, rows, [2000], max_tokens=512).takes) > 0
    assert small.fill(32, 32, [], max_tokens=512).bucket.batch >= 32


def test_buckets_that_do_not_cover_are_refused():
    with pytest.raises(ValueError, match="must include 8x1"):
        ReadyShapes(GRID, [ONE, LARGE])


def test_the_grid_is_replaced_and_never_changed():
    shapes = ReadyShapes(GRID, covering(GRID))
    before = shapes.grid
    shapes.add(ONE)
    assert before.buckets == (EIGHT,)
    assert before.fill(1, 1, [], max_tokens=8).bucket == EIGHT
    assert shapes.grid.fill(1, 1, [], max_tokens=8).bucket == ONE
    assert not shapes.complete


def test_costs_can_be_replaced_and_stay():
    shapes = ReadyShapes(GRID, [EIGHT])
    costs = {bucket: float(number) for number, bucket in enumerate(BUCKETS, 1)}
    shapes.set_costs(costs)
    assert shapes.grid.costs == {EIGHT: 3.0}
    shapes.add(MIXED)
    assert shapes.grid.costs == {EIGHT: 3.0, MIXED: 4.0}
    assert shapes.planned.costs == costs


def test_what_is_wanted_most_comes_first():
    shapes = ReadyShapes(GRID, covering(GRID))
    assert shapes.most_wanted() == ONE
    for _ in range(3):
        shapes.note(rows=5, tokens=30)
    shapes.note(rows=3, tokens=3)
    shapes.note(rows=8, tokens=8)
    assert shapes.most_wanted() == MIXED
    shapes.add(MIXED)
    assert shapes.most_wanted() == FOUR
    assert shapes.most_wanted(leave_out=[FOUR]) == ONE


@pytest.mark.parametrize(("rows", "tokens", "bucket"), [(1, 10_000, LARGE), (100, 10_000, LARGE), (2, 2, FOUR)])
def test_what_had_to_wait_counts(rows, tokens, bucket):
    shapes = ReadyShapes(GRID, covering(GRID))
    shapes.note(rows, tokens)
    assert shapes.most_wanted() == bucket


def test_all_buckets_become_ready_in_turn():
    shapes = ReadyShapes(GRID, covering(GRID))
    while (bucket := shapes.most_wanted()) is not None:
        shapes.add(bucket)
    assert shapes.complete
    assert shapes.grid.buckets == GRID.buckets
