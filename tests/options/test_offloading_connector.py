import dataclasses

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig

TIERS = [{"type": "fs", "root_dir": "/pages", "n_read_threads": 16}]


def config(*, extra=None, **changes):
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 3 << 29, "block_size": 64} | (extra or {})
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra, **changes}


def test_it_is_read_as_host_memory_and_a_directory(caplog):
    with caplog.at_level("INFO", logger="jaxengine"):
        cache = EngineConfig.from_options(kv_transfer_config=config(extra={"secondary_tiers": TIERS})).cache
    assert (cache.kv_offloading_size, cache.kv_offloading_directory) == (1.5, "/pages")
    assert cache.kv_transfer_config == {}
    assert "is read as kv_offloading_size=1.5, kv_offloading_directory='/pages'" in caplog.text
    assert dataclasses.replace(cache) == cache
    alone = EngineConfig.from_options(kv_transfer_config=config(extra={"spec_name": "CPUOffloadingSpec"})).cache
    assert (alone.kv_offloading_size, alone.disk) == (1.5, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_transfer_config": config(kv_role="kv_producer")}, "must be kv_both, got 'kv_producer'"),
        ({"kv_transfer_config": config(kv_connector_extra_config=None)}, "needs kv_connector_extra_config"),
        ({"kv_transfer_config": config(extra={"cpu_bytes_to_use": "1G"})}, "bytes above 0, got '1G'"),
        ({"kv_transfer_config": config(extra={"eviction_policy": "arc"})}, "must be one of lru, got 'arc'"),
        ({"kv_transfer_config": config(extra={"spec_module_path": "x"})}, "no key 'spec_module_path'"),
        ({"kv_transfer_config": config(extra={"secondary_tiers": [{"type": "obj"}]})}, "must be .*got {'type': 'obj'}"),
        ({"kv_transfer_config": config(extra={"secondary_tiers": TIERS * 2})}, "one secondary tier is built"),
        ({"kv_transfer_config": config(), "kv_offloading_size": 2}, "means kv_offloading_size=1.5, and .*=2 is given"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_built_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_options(**options)
