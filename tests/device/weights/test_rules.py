"""The transforms of the weight table: views of the right numbers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from jaxengine.device.weights.rules import chain, part, repeat_kv_heads, transpose

from .files import numbers


def test_transforms_are_views() -> None:
    tensor = numbers(6, 4)
    for transform in (transpose, part(1, 3), part(0, 2, axis=1), chain(transpose, part(1, 2))):
        assert np.shares_memory(transform(tensor, None, (6, 4)), tensor)


def test_transpose_and_parts() -> None:
    tensor = numbers(6, 4)
    np.testing.assert_array_equal(transpose(tensor, None, (4, 6)), tensor.T)
    np.testing.assert_array_equal(part(2, 3)(tensor, None, (2, 4)), tensor[4:])
    np.testing.assert_array_equal(chain(transpose, part(1, 2))(tensor, None, (2, 6)), tensor.T[2:])


def test_kv_heads_are_repeated_whole() -> None:
    config = SimpleNamespace(num_kv_heads=2, head_dim=3)
    weight, bias = numbers(6, 5), numbers(6)
    expected = [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    np.testing.assert_array_equal(repeat_kv_heads(weight, config, (12, 5)), weight[expected])
    np.testing.assert_array_equal(repeat_kv_heads(bias, config, (12,)), bias[expected])
    assert repeat_kv_heads(weight, config, (6, 5)) is weight
    with pytest.raises(ValueError):  # a checkpoint of fewer heads than the config says is no reason to repeat them
        repeat_kv_heads(weight[:3], config, (6, 5))
