"""The slopes of ALiBi against those of transformers, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jaxengine.device.layers.alibi import alibi_slopes, mpt_slopes


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12, 71, 112])
def test_slopes_are_those_of_bloom(heads):
    near = 2 ** math.floor(math.log2(heads))
    base = 2 ** -(2 ** -(math.log2(near) - 3))
    expected = [base**power for power in range(1, near + 1)]
    extra = 2 ** -(2 ** -(math.log2(2 * near) - 3))
    expected += [extra**power for power in range(1, 1 + 2 * min(near, heads - near), 2)]
    np.testing.assert_allclose(alibi_slopes(heads), expected)
    assert len(expected) == heads


@pytest.mark.parametrize(("heads", "steepest"), [(1, 8.0), (8, 8.0), (6, 8.0), (32, 16.0), (40, 8.0)])
def test_slopes_are_those_of_mpt(heads, steepest):
    near = 2 ** math.ceil(math.log2(heads))
    slopes = [1 / 2 ** (number * steepest / near) for number in range(1, near + 1)]
    if near != heads:
        slopes = (slopes[1::2] + slopes[::2])[:heads]
    np.testing.assert_allclose(mpt_slopes(heads, steepest=steepest), slopes)
