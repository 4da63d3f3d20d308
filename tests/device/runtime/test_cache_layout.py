"""Layers that see equally far share pages; groups of a pool are of one size, so that any page serves any of them."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from jaxengine.contract.batch import PAGES_ONLY, CacheTraits
from jaxengine.device.models.interface import Nothing, Paged, PerSlot
from jaxengine.device.runtime.cache_layout import PoolLayout, cache_traits, lay_out


def paged(*layers: int, keep: int | None = None, heads: int = 2, head_dim: int = 8) -> Paged:
    return Paged(layers, num_kv_heads=heads, head_dim=head_dim, keep=keep)


def test_layers_that_see_everything_are_one_group():
    layout = lay_out([paged(0, 1, 2)], max_model_len=100)
    assert layout.pools == (PoolLayout(num_kv_heads=2, head_dim=8, keeps=(None,), lanes=3),)
    assert layout.places == ((0, 0, 0), (0, 0, 1), (0, 0, 2))


def test_layers_that_read_what_others_keep_have_their_places():
    local, whole = Paged((0, 2), 2, 8, keep=5, readers=((3, 2), (5, 2))), Paged((1,), 2, 16, readers=((4, 1),))
    layout = lay_out([local, whole], max_model_len=100)
    assert [(pool.head_dim, pool.lanes, pool.keeps) for pool in layout.pools] == [(16, 1, (None,)), (8, 2, (5,))]
    assert layout.places == ((1, 1, 0), (0, 0, 0), (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1))


def test_a_model_of_windows_only_is_one_group():
    [pool] = lay_out([paged(0, 1, keep=10)], max_model_len=100).pools
    assert (pool.lanes, pool.keeps) == (2, (10,))


def test_many_layers_with_windows_are_cut_to_the_size_of_the_few_without():
    layout = lay_out([paged(0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12, keep=5), paged(5, 11)], max_model_len=100)
    [pool] = layout.pools
    assert (pool.lanes, pool.keeps) == (2, (None, 5, 5, 5, 5, 5, 5))
    assert (layout.places[5], layout.places[11]) == ((0, 0, 0), (0, 0, 1))
    assert len(set(layout.places)) == 13, "two layers have one place"
    windowed = [layout.places[layer] for layer in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12)]
    assert windowed == [(0, group, lane) for group in range(1, 7) for lane in range(2)][:11]


@pytest.mark.parametrize("window", [100, 101, 4096])
def test_a_window_that_no_sequence_outgrows_is_none(window):
    layout = lay_out([paged(0, keep=window), paged(1)], max_model_len=100)
    assert layout.pools[0].keeps == (None,)
    assert layout.places == ((0, 0, 0), (0, 0, 1))


def test_heads_of_another_size_have_a_pool_of_their_own():
    """As in Gemma 4: five of six layers see a window with small heads, the sixth everything with large ones."""
    layout = lay_out([paged(0, 1, 2, 3, 4, 6, keep=5), paged(5, 7, head_dim=16)], max_model_len=100)
    assert layout.pools == (
        PoolLayout(num_kv_heads=2, head_dim=16, keeps=(None,), lanes=2),
        PoolLayout(num_kv_heads=2, head_dim=8, keeps=(5,), lanes=6),
    )
    assert layout.places == (*((1, 1, lane) for lane in range(5)), (0, 0, 0), (1, 1, 5), (0, 0, 1))
    assert layout.num_groups == 2


def test_groups_are_cut_to_one_size_within_a_pool_only():
    declared = [paged(0, 1, keep=5), paged(2), paged(3, 4, 5, heads=4), paged(6, 7, 8, heads=4, keep=9)]
    first, second = lay_out(declared, max_model_len=100).pools
    assert (first.num_kv_heads, first.keeps, first.lanes) == (2, (None, 5, 5), 1)
    assert (second.num_kv_heads, second.keeps, second.lanes) == (4, (None, 9), 3)


def test_a_layer_that_says_nothing_is_refused():
    with pytest.raises(ValueError, match=r"numbered from 0, got \[0, 2\]"):
        lay_out([paged(0, 2)], max_model_len=100)


def test_a_layer_that_keeps_nothing_takes_no_lane():
    layout = lay_out([paged(0, 2), Nothing((1, 3))], max_model_len=100)
    assert layout.places == ((0, 0, 0), (0, 0, 0), (0, 0, 1), (0, 0, 0))
    assert layout.pools[0].lanes == 2


def test_a_layer_that_keeps_a_state_has_a_place_among_its_like():
    state = PerSlot((0, 2, 3), shape=(2, 8), axes=("positions", "mlp"), dtype=jnp.dtype("float32"))
    layout = lay_out([paged(1, 4), state], max_model_len=100)
    assert layout.places == ((0, 0, 0), (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 1))
    assert (layout.pools[0].lanes, layout.states) == (2, (state,))


def test_a_model_without_attention_has_pages_that_nothing_is_written_to():
    state = PerSlot((0,), shape=(8,), axes=("mlp",), dtype=jnp.dtype("float32"))
    layout = lay_out([paged(heads=3), state], max_model_len=100)
    assert layout.places == ((0, 0, 0),)
    [pool] = layout.pools
    assert (pool.num_kv_heads, pool.keeps, pool.lanes) == (3, (1,), 1)
    with pytest.raises(ValueError, match="must declare pages"):
        lay_out([state], max_model_len=100)


def test_what_a_scheduler_may_do_follows_from_what_is_kept():
    assert cache_traits([paged(0, keep=5), paged(1)]) == PAGES_ONLY
    state = PerSlot((2,), shape=(8,), axes=("mlp",), dtype=jnp.dtype("float32"), cut=6)
    other = PerSlot((3,), shape=(8,), axes=("mlp",), dtype=jnp.dtype("float32"), cut=4)
    assert cache_traits([paged(0), state, other]) == CacheTraits(shares_prefix=False, rewinds=False, cut=12)
