"""How many snapshots of recurrent layers' states an engine keeps for prefixes, and where in a sequence they are taken."""

from __future__ import annotations

import math

from jaxengine.contract.cache_traits import CacheTraits
from jaxengine.errors import ConfigError
from jaxengine.host.kvcache.snapshots import Snapshots
from jaxengine.options.config import EngineConfig

SHARE = 8
"""Of what weights and slots leave of memory, one in so many bytes is for snapshots, the rest for pages.

With an eighth most of a conversation trace is found again, of Qwen3-Next and Qwen3.5 on v6e-8 as with a quarter or more and with
snapshots every 512 to 8,192 tokens too (`benchmarks/state_snapshots.py`): a sixteenth has too few, a half leaves too few pages.
"""

MOST_PER_SEQUENCE = 16
"""Snapshots for each sequence that may run: where states are small nobody needs more."""


def choose_count(
    config: EngineConfig, traits: CacheTraits, *, room: int, snapshot_bytes: int, max_num_seqs: int
) -> int:
    """The snapshots that were asked for, or as many as a share of `room` bytes holds; none where prefixes are not kept.

    Raises:
        ConfigError: they were asked for, of a model that has no states.
    """
    cache = config.cache
    if traits.rewinds:
        _refuse_where_there_are_no_states(config)
        return 0
    if not cache.enable_prefix_caching or cache.mamba_cache_mode == "none":
        return 0
    if cache.num_snapshots is not None:
        return cache.num_snapshots
    return max(0, min(room // SHARE // snapshot_bytes, MOST_PER_SEQUENCE * max_num_seqs))


def make_snapshots(config: EngineConfig, traits: CacheTraits, *, count: int, page_size: int) -> Snapshots | None:
    """The accounts of so many snapshots; None of none.

    Raises:
        ConfigError: blocks that are not whole pages, or in deterministic mode not whole chunks of the recurrence.
    """
    if not count:
        return None
    whole = math.lcm(page_size, traits.cut)
    block = config.cache.mamba_block_size or whole
    step, what = (
        (whole, "whole chunks of the recurrence") if config.scheduler.deterministic else (page_size, "whole pages")
    )
    if block % step:
        raise ConfigError(f"mamba_block_size is {block} tokens; give a multiple of {step} ({what}), or leave it out")
    every = block if config.cache.mamba_cache_mode == "all" else 0
    return Snapshots(count, page_size=page_size, block=block, every=every)


def _refuse_where_there_are_no_states(config: EngineConfig) -> None:
    cache = config.cache
    asked: dict[str, object] = {"mamba_block_size": cache.mamba_block_size, "num_snapshots": cache.num_snapshots}
    if cache.mamba_cache_mode not in ("auto", "none"):
        asked["mamba_cache_mode"] = cache.mamba_cache_mode
    if given := [name for name, value in asked.items() if value]:
        raise ConfigError(
            f"only models with recurrent layers take {' and '.join(given)}, and this one has none; leave that out"
        )
