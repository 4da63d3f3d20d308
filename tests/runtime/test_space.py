"""How many sampled rows programs are compiled for, by platform."""

from __future__ import annotations

import dataclasses

import pytest

from buckets import Bucket, Grid, StepShape
from tests.runtime.test_forward import space


@pytest.mark.parametrize(
    ("platform", "rows", "counts"),
    [
        ("cpu", (1, 9, 64), (8, 16, 64)),
        ("gpu", (1, 9, 64), (8, 16, 64)),
        ("tpu", (8, 16, 32, 256), (16, 128, 256)),
        ("tpu", (8, 1024), (16, 1024)),
        ("tpu", (8,), (16,)),
        ("cpu", (3, 100), (8, 100)),
    ],
)
def test_few_row_counts_hold_every_shape(tmp_path, platform, rows, counts):
    grid = Grid(StepShape(None, Bucket(count, 1)) for count in rows)
    found = dataclasses.replace(space(tmp_path, {}), platform=platform, grid=grid)
    assert found.row_counts == counts
    assert all(found.sampled_rows(shape) >= shape.rows for shape in grid.shapes)
