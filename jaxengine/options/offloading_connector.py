"""vLLM's `OffloadingConnector` of `kv_transfer_config`: other words for host memory and a directory behind the device's pages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from jaxengine.errors import ConfigError

logger = logging.getLogger("jaxengine")

NAME = "OffloadingConnector"
GIB = 1 << 30
ALLOWED: Mapping[str, tuple[Any, ...]] = {
    "spec_name": ("CPUOffloadingSpec", "TieringOffloadingSpec"),
    "eviction_policy": ("lru",),
}
NO_EFFECT = ("block_size", "blocks_per_chunk", "n_read_threads", "n_write_threads")
"""Pages move one by one, on threads that are there anyway."""


def read_offloading_connector(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that such a `kv_transfer_config` stands for, itself left out; nothing where it is another connector's.

    Args:
        config: `kv_transfer_config`.
        given: the options of the same meaning that are given themselves.

    Raises:
        ConfigError: a key that is not known or not built, a value that is not allowed, or an option that is given twice.
    """
    if config.get("kv_connector") != NAME:
        return {}
    extra = config.get("kv_connector_extra_config")
    if not isinstance(extra, Mapping):
        raise ConfigError(
            f"kv_transfer_config: {NAME} needs kv_connector_extra_config with cpu_bytes_to_use, got {extra!r}"
        )
    if config.get("kv_role") != "kv_both":
        raise ConfigError(f"kv_transfer_config: kv_role of {NAME} must be kv_both, got {config.get('kv_role')!r}")
    size = extra.get("cpu_bytes_to_use")
    if isinstance(size, bool) or not isinstance(size, (int, float)) or size <= 0:
        raise ConfigError(f"kv_transfer_config: cpu_bytes_to_use must be a number of bytes above 0, got {size!r}")
    options: dict[str, Any] = {"kv_offloading_size": size / GIB}
    tiers = extra.get("secondary_tiers") or ()
    if len(tiers) > 1:
        raise ConfigError(f"kv_transfer_config: one secondary tier is built, a directory; got {len(tiers)}")
    for tier in tiers:
        if tier.get("type") != "fs" or not tier.get("root_dir"):
            raise ConfigError(
                'kv_transfer_config: a secondary tier must be {"type": "fs", "root_dir": "/a/directory"}, got '
                f"{dict(tier)!r}; pages of other engines come by TcpConnector"
            )
        _check(tier, known=("type", "root_dir"))
        options["kv_offloading_directory"] = tier["root_dir"]
    _check(extra, known=("cpu_bytes_to_use", "secondary_tiers"))
    for name, value in options.items():
        if given.get(name) not in (None, value):
            raise ConfigError(
                f"kv_transfer_config means {name}={value!r}, and {name}={given[name]!r} is given too; give one"
            )
    said = ", ".join(f"{name}={value!r}" for name, value in options.items())
    logger.info("kv_transfer_config with %s is read as %s", NAME, said)
    return {**options, "kv_transfer_config": {}}


def _check(config: Mapping[str, Any], *, known: tuple[str, ...]) -> None:
    for key, value in config.items():
        if key in NO_EFFECT:
            logger.info("kv_transfer_config: %s has no effect", key)
        elif key in ALLOWED and value not in ALLOWED[key]:
            raise ConfigError(
                f"kv_transfer_config: {key} must be one of {', '.join(map(str, ALLOWED[key]))}, got {value!r}"
            )
        elif key not in (*known, *ALLOWED):
            raise ConfigError(f"kv_transfer_config: {NAME} has no key {key!r} that is built; leave it out")
