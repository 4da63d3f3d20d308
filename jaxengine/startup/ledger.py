"""The page ledger of an engine: pages of its pools, what lies behind them, and whether prefixes are cached."""

from __future__ import annotations

import logging

from jaxengine.contract.cache_traits import CacheTraits
from jaxengine.device.runtime.block_moves import most_leaving
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.host.kvcache.host_tier import HostTier
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.prefix import Prefixes, keyed_hash
from jaxengine.options.config import EngineConfig
from jaxengine.startup.offloading import check_host_memory
from jaxengine.startup.outer_stores import Outer
from jaxengine.startup.state_snapshots import make_snapshots

logger = logging.getLogger("jaxengine")


def make_ledger(config: EngineConfig, traits: CacheTraits, space: ProgramSpace, outer: Outer | None) -> Ledger:
    """An empty ledger of the pages and snapshots in `space`; `outer` is what lies behind the host's memory.

    Raises:
        ConfigError: memory of the host is to keep prefixes and none are cached, or the host has less; or snapshots are to be
            taken where they cannot be.
    """
    snapshots = make_snapshots(config, traits, count=space.num_snapshots, page_size=space.page_size)
    caches_prefixes = config.cache.enable_prefix_caching and (traits.rewinds or snapshots is not None)
    if config.cache.enable_prefix_caching and not caches_prefixes:
        logger.info("prefix caching is off: layers keep a state of each sequence, of which there are to be no copies")
    check_host_memory(config.cache, caches_prefixes=caches_prefixes)
    tier = None
    if space.host_blocks:
        *of_pages, of_snapshots = space.host_blocks if snapshots is not None else (*space.host_blocks, 0)
        tier = HostTier(of_pages, most_leaving=most_leaving(space), outer=outer is not None, snapshots=of_snapshots)
    return Ledger(
        [PagePool(pages, pool.windows) for pages, pool in zip(space.num_pages, space.cache.pools, strict=True)],
        space.page_size,
        enable_prefix_caching=caches_prefixes,
        prefixes=None if outer is None else Prefixes(hash=keyed_hash(outer.secret)),
        tier=tier,
        snapshots=snapshots,
    )
