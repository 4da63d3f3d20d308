"""The patches of items lie where the tower wants them, whatever its order."""

from __future__ import annotations

import numpy as np
import pytest

from jaxengine.device.runtime.encoder import _fill

pytestmark = pytest.mark.jax


@pytest.mark.parametrize("order", ["as they come", "windows", "a place before each", "mixed"])
def test_patches_lie_where_they_are_wanted(order: str) -> None:
    random = np.random.default_rng(0)
    patches = [random.normal(size=(count, 3)).astype(np.float32) for count in (5, 1, 7)]
    wanted = np.arange(13)
    if order == "windows":
        wanted = np.concatenate([random.permutation(5), [5], 6 + random.permutation(7)])
    if order == "a place before each":
        wanted = np.insert(wanted, [0, 5, 6], -1)
    if order == "mixed":
        wanted = random.permutation(13)
    places = np.concatenate([wanted, [-1, -1]]).astype(np.int32)
    given = np.zeros((len(places), 3), np.float32)
    _fill(given, patches, places)
    stacked = np.concatenate([*patches, np.zeros((1, 3), np.float32)])
    np.testing.assert_array_equal(given, stacked[places])
