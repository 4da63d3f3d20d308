"""Some shapes are ready before others: all work fits at any time, and what is asked for most becomes ready first."""

from __future__ import annotations

import pytest

from buckets import Bucket, Grid, Limits, ReadyShapes, StepShape, covering, plan
from buckets.planners import PLANNERS

PREFILL = [StepShape(Bucket(1, 16), None), StepShape(Bucket(4, 16), None), StepShape(Bucket(4, 64), None)]
DECODE = [StepShape(None, Bucket(rows, 1)) for rows in (1, 4, 8)]
PAIR = StepShape(Bucket(4, 16), Bucket(8, 1))
GRID = Grid([*PREFILL, *DECODE, PAIR])


def test_the_largest_buckets_cover_all_work():
    assert covering(GRID) == (PREFILL[2], DECODE[2])


@pytest.mark.parametrize("planner", [name for name in PLANNERS if name != "explicit"])
def test_any_work_of_any_planner_fits_what_covers_it(planner):
    grid = plan(planner, Limits(max_num_seqs=32, max_num_batched_tokens=512, max_model_len=2048, page_size=16))
    small = ReadyShapes(grid, covering(grid)).grid
    assert len(small) == 2
    for rows in range(1, 33):
        assert small.fit_decode(rows).batch >= rows
    for lengths in ([1], [2000], [3] * 32, [500, 1, 1], [17] * 31):
        fill = small.fill_prefill(lengths, max_tokens=512)
        assert fill is not None
        assert sum(fill.takes) > 0


def test_shapes_that_do_not_cover_are_refused():
    with pytest.raises(ValueError, match="must include prefill 4x64"):
        ReadyShapes(GRID, [PREFILL[0], DECODE[2]])


def test_the_grid_is_replaced_and_never_changed():
    shapes = ReadyShapes(GRID, covering(GRID))
    before = shapes.grid
    shapes.add(DECODE[0])
    assert len(before) == 2
    assert before.fit_decode(1) == Bucket(8, 1)
    assert shapes.grid.fit_decode(1) == Bucket(1, 1)
    assert not shapes.complete


def test_a_pair_waits_for_its_halves():
    shapes = ReadyShapes(GRID, covering(GRID))
    shapes.add(PAIR)
    assert not shapes.grid.has(PAIR)
    shapes.add(PREFILL[1])
    assert shapes.grid.has(PAIR)


def test_what_is_wanted_most_comes_first():
    shapes = ReadyShapes(GRID, covering(GRID))
    assert shapes.most_wanted() == DECODE[0]
    for _ in range(3):
        shapes.note([16, 16, 7], decode_rows=3)
    shapes.note([5], decode_rows=3)
    assert shapes.most_wanted() == DECODE[1]
    shapes.add(DECODE[1])
    assert shapes.most_wanted() == PREFILL[1]
    assert shapes.most_wanted(leave_out=[PREFILL[1]]) == PREFILL[0]


def test_all_shapes_become_ready_in_turn():
    shapes = ReadyShapes(GRID, covering(GRID))
    while (shape := shapes.most_wanted()) is not None:
        shapes.add(shape)
    assert shapes.complete
    assert set(shapes.grid.shapes) == set(GRID.shapes)
