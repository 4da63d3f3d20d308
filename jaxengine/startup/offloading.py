"""How many pages the host's memory holds behind the device's, of what `kv_offloading_size` allows."""

from __future__ import annotations

import math
from dataclasses import replace

from jaxengine.device.runtime.block_moves import block_bytes
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.target import host_memory_bytes
from jaxengine.errors import ConfigError
from jaxengine.options.cache import CacheConfig

GIB = 1 << 30


PASSAGE_SHARE = 4
"""Where pages pass through the host's memory and no size is asked for: one part in so many of it, or what the device has."""


def with_host_blocks(space: ProgramSpace, cache: CacheConfig) -> ProgramSpace:
    """The space with blocks on the host, divided as the device's pages and snapshots are; as it is where none are needed.

    Raises:
        ConfigError: not even one page of each pool fits.
    """
    if cache.kv_offloading_size is None and not cache.has_outer:
        return space
    sizes = block_bytes(space)
    counts = (*space.num_pages, space.num_snapshots) if space.num_snapshots else space.num_pages
    on_device = sum(count * each for count, each in zip(counts, sizes, strict=True))
    if cache.kv_offloading_size is not None:
        size = int(cache.kv_offloading_size * GIB)
    else:
        size = min(on_device, host_memory_bytes() // PASSAGE_SHARE)
    if size < sum(sizes):
        raise ConfigError(
            f"kv_offloading_size={size / GIB:.3g} GiB holds no page of each pool ({' + '.join(map(str, sizes))} bytes); give it "
            f"{math.ceil(sum(sizes) / GIB * 1000) / 1000:.3f} or more, or leave it out"
        )
    return replace(space, host_blocks=tuple(max(1, size * count // on_device) for count in counts))


def check_host_memory(cache: CacheConfig, *, caches_prefixes: bool) -> None:
    """Accept a size that this host has.

    Raises:
        ConfigError: it has less, or pages would never be found again.
    """
    size = cache.kv_offloading_size
    if not caches_prefixes and (size is not None or cache.has_outer):
        raise ConfigError(
            "kv_offloading_size, kv_offloading_directory and kv_transfer_config keep pages of prefixes, and this engine finds "
            "none again: prefix caching is off. Leave one of the two out"
        )
    available = host_memory_bytes()
    if size is not None and size * GIB > available:
        raise ConfigError(
            f"kv_offloading_size={size} GiB is more than the {available / GIB:.1f} GiB of memory that this host has available; "
            "give it less"
        )
