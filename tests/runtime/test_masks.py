"""Masks that come after the forward pass find their rows, however many launches the step took."""

from __future__ import annotations

import numpy as np

from jaxengine.batch import RowSampling, SamplingSpec
from jaxengine.runtime.runner import Launch, _masked


def row(seed: int, allowed: int | None = None) -> RowSampling:
    mask = None if allowed is None else np.array([allowed], np.uint32)
    return RowSampling(SamplingSpec(temperature=0.0, seed=seed), allowed=mask)


def test_rows_are_numbered_across_launches() -> None:
    launches = (
        Launch([row(0), row(1, allowed=7)], [3, 4], hidden=None),  # type: ignore[arg-type]
        Launch([], [], hidden=None),  # type: ignore[arg-type]
        Launch([row(2), row(3)], [5, 6], hidden=None),  # type: ignore[arg-type]
    )
    masks = {0: np.array([1], np.uint32), 3: np.array([2], np.uint32)}
    found = [row for launch in _masked(launches, masks) for row in launch.rows]
    assert [row.spec.seed for row in found] == [0, 1, 2, 3]
    assert [None if row.allowed is None else int(row.allowed[0]) for row in found] == [1, 7, None, 2]
    assert launches[0].rows[0].allowed is None, "the launch itself is left as it was"
