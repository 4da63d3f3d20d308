"""Layers that see equally far share pages; groups of a pool are of one size, so that any page serves any of them."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from jaxengine.contract.cache_traits import PAGES_ONLY, CacheTraits
from jaxengine.device.layers.keeps import CacheIndex, IndexKeys, Paged, PageIndex, PerSlot, Reads, State, Takes
from jaxengine.device.runtime.cache_layout import PoolLayout, cache_traits, lay_out
from jaxengine.device.runtime.stages import together
from jaxengine.errors import ConfigError

WHOLE, WINDOW = (Paged(2, 8, 8),), (Paged(2, 8, 8, window=5),)
LARGE = (Paged(2, 16, 16),)
KEYS = IndexKeys(8, jnp.dtype("float32"), count=4)


def per_slot(name: str, *, cut: int = 4) -> PerSlot:
    return PerSlot((State(name, (2, 8), ("positions", "mlp"), jnp.dtype("float32")),), cut=cut)


def test_layers_that_see_everything_are_one_group():
    layout = lay_out([WHOLE, WHOLE, WHOLE], max_model_len=100)
    assert layout.pools == (PoolLayout(heads=2, key=8, value=8, windows=(None,), lanes=3),)
    assert layout.indices == (CacheIndex(0, 0, 0), CacheIndex(0, 0, 1), CacheIndex(0, 0, 2))


def test_layers_that_read_what_others_keep_have_their_indices():
    declared = [WINDOW, LARGE, WINDOW, (Reads(2),), (Reads(1),), (Reads(2),)]
    layout = lay_out(declared, max_model_len=100)
    assert [(pool.key, pool.lanes, pool.windows) for pool in layout.pools] == [(16, 1, (None,)), (8, 2, (5,))]
    places = [(1, 1, 0), (0, 0, 0), (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1)]
    assert [index[:3] for index in layout.indices] == places
    with pytest.raises(ValueError, match="layer 1 reads what layer 2 keeps, which has no pages"):
        lay_out([WHOLE, (Reads(2),), ()], max_model_len=100)


def test_what_is_handed_on_is_handed_on_within_a_stage():
    latent = Paged(1, 8, 0)
    declared = [(latent, KEYS), (latent, Takes()), (latent, KEYS), (latent, Takes())]
    layout = lay_out(declared, max_model_len=100, stages=(range(2), range(2, 4)))
    assert [index.keys is None for index in layout.indices] == [False, True, False, True]
    with pytest.raises(ConfigError, match="layer 3 of this model attends to what layer 2 hands on, in another stage"):
        lay_out(declared, max_model_len=100, stages=(range(3), range(3, 4)))
    assert [*together(declared, range(4))] == [range(2), range(2, 4)]
    assert [*together([*declared[:2], WHOLE, WHOLE], range(4))] == [range(2), range(2, 3), range(3, 4)]


def test_a_model_of_windows_only_is_one_group():
    [pool] = lay_out([(Paged(2, 8, 8, window=10),)] * 2, max_model_len=100).pools
    assert (pool.lanes, pool.windows) == (2, (10,))


def test_many_layers_with_windows_are_cut_to_the_size_of_the_few_without():
    layout = lay_out([WHOLE if layer in (5, 11) else WINDOW for layer in range(13)], max_model_len=100)
    [pool] = layout.pools
    assert (pool.lanes, pool.windows) == (2, (None, 5, 5, 5, 5, 5, 5))
    assert (layout.indices[5], layout.indices[11]) == (CacheIndex(0, 0, 0), CacheIndex(0, 0, 1))
    assert len(set(layout.indices)) == 13, "two layers have one index"
    windowed = [layout.indices[layer][:3] for layer in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12)]
    assert windowed == [(0, group, lane) for group in range(1, 7) for lane in range(2)][:11]


@pytest.mark.parametrize("window", [100, 101, 4096])
def test_a_window_that_no_sequence_outgrows_is_none(window):
    layout = lay_out([(Paged(2, 8, 8, window=window),), WHOLE], max_model_len=100)
    assert layout.pools[0].windows == (None,)
    assert layout.indices == (CacheIndex(0, 0, 0), CacheIndex(0, 0, 1))


def test_heads_of_another_size_have_a_pool_of_their_own():
    """As in Gemma 4: five of six layers see a window with small heads, the sixth everything with large ones."""
    layout = lay_out([LARGE if layer in (5, 7) else WINDOW for layer in range(8)], max_model_len=100)
    assert layout.pools == (
        PoolLayout(heads=2, key=16, value=16, windows=(None,), lanes=2),
        PoolLayout(heads=2, key=8, value=8, windows=(5,), lanes=6),
    )
    places = [*((1, 1, lane) for lane in range(5)), (0, 0, 0), (1, 1, 5), (0, 0, 1)]
    assert [index[:3] for index in layout.indices] == places
    assert layout.num_groups == 2


def test_groups_are_cut_to_one_size_within_a_pool_only():
    wide = Paged(4, 8, 8)
    declared = [WINDOW, WINDOW, WHOLE, *[(wide,)] * 3, *[(Paged(4, 8, 8, window=9),)] * 3]
    first, second = lay_out(declared, max_model_len=100).pools
    assert (first.heads, first.windows, first.lanes) == (2, (None, 5, 5), 1)
    assert (second.heads, second.windows, second.lanes) == (4, (None, 9), 3)


def test_pages_of_another_type_or_of_latent_vectors_are_pools_of_their_own():
    own = Paged(2, 8, 8, dtype=jnp.dtype("float32"))
    layout = lay_out([WHOLE, (own,), (Paged(2, 8, 0),)], max_model_len=100)
    assert [(pool.dtype, pool.latent) for pool in layout.pools] == [(None, False), (own.dtype, False), (None, True)]


def test_keys_of_an_indexer_are_a_pool_of_their_own():
    """Also where they are as large as what the layer keeps beside them."""
    keys = KEYS
    layout = lay_out([(Paged(1, 8, 0),), *[(Paged(1, 8, 0), keys)] * 2], max_model_len=100)
    assert [(pool.dtype, pool.latent, pool.lanes) for pool in layout.pools] == [(None, True, 3), (keys.dtype, True, 2)]
    assert [index.keys for index in layout.indices] == [None, PageIndex(1, 1, 0), PageIndex(1, 1, 1)]
    assert [index.pools for index in layout.indices] == [(0,), (0, 1), (0, 1)]
    assert layout.num_groups == 2
    index = layout.indices[2]
    assert index.with_numbers(*index.numbers) == index


def test_keys_and_values_of_two_sizes_are_refused():
    with pytest.raises(ConfigError, match="layer 1 of this model has keys of 24 numbers a head and values of 16"):
        lay_out([WHOLE, (Paged(2, 24, 16),)], max_model_len=100)


def test_a_layer_that_keeps_nothing_takes_no_lane():
    layout = lay_out([WHOLE, (), WHOLE, ()], max_model_len=100)
    assert [layout.indices[layer] for layer in (0, 2)] == [CacheIndex(0, 0, 0), CacheIndex(0, 0, 1)]
    assert layout.pools[0].lanes == 2


def test_a_layer_that_keeps_a_state_has_a_number_among_its_like():
    kept, other = per_slot("one"), per_slot("other")
    layout = lay_out([(kept,), WHOLE, (kept,), (*WHOLE, kept), (other,), WHOLE], max_model_len=100)
    assert [layout.indices[layer].state for layer in (0, 2, 3, 4)] == [0, 1, 2, 0]
    assert [layout.indices[layer].lane for layer in (1, 3, 5)] == [0, 1, 2], "a layer may keep pages and states"
    assert [(each.state.name, each.layers) for each in layout.states] == [("one", 3), ("other", 1)]


def test_two_kinds_of_states_need_two_names():
    state = State("one", (3, 8), ("positions", "mlp"), jnp.dtype("float32"))
    with pytest.raises(ValueError, match="give them different names"):
        lay_out([(per_slot("one"),), (PerSlot((state,)),)], max_model_len=100)
    with pytest.raises(ValueError, match="layer 0 declares PerSlot 2 times"):
        lay_out([(per_slot("one"), per_slot("other"))], max_model_len=100)


def test_a_model_without_attention_has_pages_that_nothing_is_written_to():
    [pool] = lay_out([(per_slot("one"),)], max_model_len=100).pools
    assert (pool.windows, pool.lanes) == ((1,), 1)


def test_what_a_scheduler_may_do_follows_from_what_is_kept():
    assert cache_traits([WHOLE, WINDOW, ()]) == PAGES_ONLY
    declared = [WHOLE, (per_slot("one", cut=6),), (per_slot("other", cut=4),)]
    assert cache_traits(declared) == CacheTraits(rewinds=False, cut=12)


def test_stages_have_lanes_of_their_own_for_one_list_of_pages():
    """Twelve layers of which each sixth sees everything, in two stages: each holds one lane of every group."""
    cache = [WHOLE if layer % 6 == 5 else WINDOW for layer in range(12)]
    whole, parted = (lay_out(cache, max_model_len=64, stages=stages) for stages in ((), (range(6), range(6, 12))))
    assert parted.pools[0].windows == whole.pools[0].windows
    assert parted.pools[0].by_mesh == (1, 1)
    for mesh, layers in enumerate((range(6), range(6, 12))):
        [pool] = parted.of_mesh(mesh).pools
        indices = [parted.indices[layer] for layer in layers]
        assert len({index.pages for index in indices}) == len(indices), "no two layers of a stage share a place"
        assert max(index.lane for index in indices) + 1 == pool.lanes


def test_a_stage_reads_no_other_ones_pages():
    cache = [WHOLE, (Reads(0),)]
    with pytest.raises(ConfigError, match="layer 1 of this model reads what layer 0 keeps"):
        lay_out(cache, max_model_len=64, stages=(range(1), range(1, 2)))
    assert lay_out(cache, max_model_len=64, stages=(range(2),)).indices[1] == CacheIndex()
