"""Layers that see equally far share pages; groups are of one size, so that any page serves any of them."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from jaxengine.models.interface import Paged, PerSlot
from jaxengine.runtime.cache_layout import lay_out


def paged(*layers: int, keep: int | None = None, heads: int = 2) -> Paged:
    return Paged(layers, num_kv_heads=heads, head_dim=8, keep=keep)


def test_layers_that_see_everything_are_one_group():
    layout = lay_out([paged(0, 1, 2)], max_model_len=100)
    assert (layout.lanes, layout.keeps) == (3, (None,))
    assert layout.places == ((0, 0), (0, 1), (0, 2))


def test_a_model_of_windows_only_is_one_group():
    layout = lay_out([paged(0, 1, keep=10)], max_model_len=100)
    assert (layout.lanes, layout.keeps) == (2, (10,))


def test_many_layers_with_windows_are_cut_to_the_size_of_the_few_without():
    layout = lay_out([paged(0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12, keep=5), paged(5, 11)], max_model_len=100)
    assert layout.lanes == 2
    assert layout.keeps == (None, 5, 5, 5, 5, 5, 5)
    assert layout.places[5], layout.places[11] == ((0, 0), (0, 1))
    assert len(set(layout.places)) == 13, "two layers have one place"
    windowed = [layout.places[layer] for layer in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12)]
    assert windowed == [(group, lane) for group in range(1, 7) for lane in range(2)][:11]


@pytest.mark.parametrize("window", [100, 101, 4096])
def test_a_window_that_no_sequence_outgrows_is_none(window):
    layout = lay_out([paged(0, keep=window), paged(1)], max_model_len=100)
    assert (layout.keeps, layout.places) == ((None,), ((0, 0), (0, 1)))


def test_heads_of_several_shapes_are_refused():
    with pytest.raises(ValueError, match="heads of one shape"):
        lay_out([paged(0), paged(1, heads=4)], max_model_len=100)


def test_a_layer_that_keeps_nothing_is_refused():
    with pytest.raises(ValueError, match=r"numbered from 0, got \[0, 2\]"):
        lay_out([paged(0, 2)], max_model_len=100)


def test_a_layer_that_keeps_a_state_has_a_place_among_its_like():
    state = PerSlot((0, 2, 3), shape=(2, 8), axes=("positions", "mlp"), dtype=jnp.dtype("float32"))
    layout = lay_out([paged(1, 4), state], max_model_len=100)
    assert layout.places == ((0, 0), (0, 0), (0, 1), (0, 2), (0, 1))
    assert (layout.lanes, layout.states) == (2, (state,))


def test_a_model_without_attention_is_refused():
    state = PerSlot((0,), shape=(8,), axes=("mlp",), dtype=jnp.dtype("float32"))
    with pytest.raises(ValueError, match="and some must"):
        lay_out([state], max_model_len=100)
