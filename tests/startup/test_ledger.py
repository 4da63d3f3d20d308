"""The ledger of an engine has the pages of its space, and caches prefixes where its model lets it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxengine.contract.cache_traits import PAGES_ONLY, CacheTraits
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.ledger import make_ledger
from tests.device.runtime.test_programs import space

STATES = CacheTraits(rewinds=False)


@pytest.mark.parametrize(
    ("traits", "num_snapshots", "wanted", "caches", "logged"),
    [
        (PAGES_ONLY, 0, True, True, False),
        (PAGES_ONLY, 0, False, False, False),
        (STATES, 4, True, True, False),
        (STATES, 0, True, False, True),
    ],
)
def test_prefixes_are_cached_where_that_is_wanted_and_can_be(
    traits: CacheTraits, num_snapshots: int, wanted: bool, caches: bool, logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig.from_options(enable_prefix_caching=wanted)
    found = replace(space("float32"), num_snapshots=num_snapshots)
    with caplog.at_level("INFO", logger="jaxengine"):
        ledger = make_ledger(config, traits, found, outer=None)
    assert ledger.caches_prefixes is caches
    assert (ledger.snapshots is not None) is (num_snapshots > 0)
    assert ("prefix caching is off" in caplog.text) is logged
    assert (ledger.pools.num_pages, ledger.page_size, ledger.tier) == (sum(found.num_pages), found.page_size, None)


def test_blocks_of_the_host_are_a_tier_which_needs_prefixes() -> None:
    config = EngineConfig.from_options(kv_offloading_size=0.001)
    found = replace(space("float32"), host_blocks=(5,))
    tier = make_ledger(config, PAGES_ONLY, found, outer=None).tier
    assert tier is not None
    assert [blocks.num_blocks for blocks in tier.blocks] == [5]
    with pytest.raises(ConfigError, match="prefix caching is off"):
        make_ledger(config, STATES, found, outer=None)
