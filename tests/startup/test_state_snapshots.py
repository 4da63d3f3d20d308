"""How many snapshots an engine has, where they are taken, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.contract.cache_traits import PAGES_ONLY, CacheTraits
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.state_snapshots import choose_count, make_snapshots

RECURRENT = CacheTraits(rewinds=False, cut=128)


def count(traits: CacheTraits = RECURRENT, *, room: int = 1 << 30, **options: Any) -> int:
    config = EngineConfig.from_options(**options)
    return choose_count(config, traits, room=room, snapshot_bytes=1 << 20, max_num_seqs=64)


def make(**options: Any) -> tuple[int, int]:
    made = make_snapshots(EngineConfig.from_options(**options), RECURRENT, count=3, page_size=32)
    assert made is not None
    assert made.pool.num_pages == 4
    return made.block, made.every


def test_a_share_of_memory_is_for_snapshots_and_no_more_than_can_be_of_use():
    assert count() == 128
    assert count(room=1 << 40) == 16 * 64
    assert count(room=-5) == 0
    assert count(num_snapshots=7) == 7


def test_there_are_none_where_no_prefix_is_kept():
    assert count(PAGES_ONLY) == count(PAGES_ONLY, mamba_cache_mode="none") == 0
    assert count(enable_prefix_caching=False) == count(mamba_cache_mode="none") == 0
    assert make_snapshots(EngineConfig(), RECURRENT, count=0, page_size=32) is None


def test_blocks_are_whole_pages_and_chunks():
    assert make() == make(mamba_cache_mode="align") == (128, 0)
    assert make(mamba_cache_mode="all") == (128, 128)
    assert make(mamba_block_size=64) == (64, 0)
    assert make(mamba_cache_mode="all", mamba_block_size=256, deterministic=True) == (256, 256)
    with pytest.raises(ConfigError, match=r"mamba_block_size is 40 tokens; give a multiple of 32 \(whole pages\)"):
        make(mamba_block_size=40)
    with pytest.raises(ConfigError, match=r"a multiple of 128 \(whole chunks of the recurrence\)"):
        make(mamba_block_size=64, deterministic=True)


@pytest.mark.parametrize("options", [{"mamba_cache_mode": "all"}, {"mamba_block_size": 64}, {"num_snapshots": 3}])
def test_they_are_refused_for_a_model_without_states(options):
    with pytest.raises(ConfigError, match=f"only models with recurrent layers take {next(iter(options))}"):
        count(PAGES_ONLY, **options)
