"""The transforms of the weight table: views of the right numbers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from jaxengine.weights.rules import chain, part, repeat_kv_heads, transpose

from .files import numbers


def test_transforms_are_views() -> None:
    tensor = numbers(6, 4)
    for transform in (transpose, part(1, 3), part(0, 2, axis=1), chain(transpose, part(1, 2))):
        assert np.shares_memory(transform(tensor, None), tensor)


def test_transpose_and_parts() -> None:
    tensor = numbers(6, 4)
    np.testing.assert_array_equal(transpose(tensor, None), tensor.T)
    np.testing.assert_array_equal(part(2, 3)(tensor, None), tensor[4:])
    np.testing.assert_array_equal(chain(transpose, part(1, 2))(tensor, None), tensor.T[2:])


def test_kv_heads_are_repeated_whole() -> None:
    config = SimpleNamespace(num_kv_heads=2, head_dim=3, kv_repeats=2)
    weight, bias = numbers(6, 5), numbers(6)
    expected = [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    np.testing.assert_array_equal(repeat_kv_heads(weight, config), weight[expected])
    np.testing.assert_array_equal(repeat_kv_heads(bias, config), bias[expected])
    config.kv_repeats = 1
    assert repeat_kv_heads(weight, config) is weight
