"""Blocks on the host of what `kv_offloading_size` allows."""

from __future__ import annotations

import pytest

from jaxengine.device.runtime.block_moves import block_bytes
from jaxengine.errors import ConfigError
from jaxengine.options.cache import CacheConfig
from jaxengine.options.config import EngineConfig
from jaxengine.startup import offloading
from jaxengine.startup.offloading import GIB, check_host_memory, with_host_blocks
from tests.device.runtime.test_programs import space


def test_blocks_are_as_many_as_the_size_holds() -> None:
    found = space("float32")
    assert with_host_blocks(found, CacheConfig()) is found
    [count] = with_host_blocks(found, CacheConfig(kv_offloading_size=0.25)).host_blocks
    [size] = block_bytes(found)
    assert size * found.num_pages[0] == found.kv_pages[0].size * 4
    assert count == GIB // 4 // size


def test_pages_that_pass_through_take_what_the_device_has_or_a_part_of_the_host(monkeypatch, tmp_path) -> None:
    found, cache = space("float32"), CacheConfig(kv_offloading_directory=str(tmp_path))
    assert with_host_blocks(found, cache).host_blocks == found.num_pages
    [size] = block_bytes(found)
    monkeypatch.setattr(offloading, "host_memory_bytes", lambda: 4 * 3 * size)
    assert with_host_blocks(found, cache).host_blocks == (3,)


def test_a_size_without_room_for_a_page_is_refused() -> None:
    """What it is said to need is enough."""
    with pytest.raises(ConfigError, match=r"kv_offloading_size=.* GiB holds no page .* give it 0\.001 or more"):
        with_host_blocks(space("float32"), CacheConfig(kv_offloading_size=1e-9))
    assert with_host_blocks(space("float32"), CacheConfig(kv_offloading_size=0.001)).host_blocks[0] >= 1


def test_a_size_that_the_host_does_not_have_is_refused() -> None:
    check_host_memory(CacheConfig(), caches_prefixes=False)
    check_host_memory(CacheConfig(kv_offloading_size=0.001), caches_prefixes=True)
    with pytest.raises(ConfigError, match=r"more than the .* GiB of memory that this host has"):
        check_host_memory(CacheConfig(kv_offloading_size=1e6), caches_prefixes=True)
    with pytest.raises(ConfigError, match="prefix caching is off"):
        check_host_memory(CacheConfig(kv_offloading_size=1.0), caches_prefixes=False)


def test_the_option_has_vllms_names(caplog: pytest.LogCaptureFixture) -> None:
    assert EngineConfig.from_options(kv_offloading_size=2, kv_offloading_backend="native").cache.kv_offloading_size == 2
    with caplog.at_level("INFO", logger="jaxengine"):
        assert EngineConfig.from_options(swap_space=4).cache.kv_offloading_size == 4
    assert "swap_space=4 is read as kv_offloading_size" in caplog.text
    with pytest.raises(ConfigError, match="kv_offloading_backend must be one of native"):
        EngineConfig.from_options(kv_offloading_backend="lmcache")
    with pytest.raises(ConfigError, match="a number above 0"):
        EngineConfig.from_options(kv_offloading_size=-1)
