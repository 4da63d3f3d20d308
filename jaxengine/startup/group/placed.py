"""Which host of an engine this process is, by whoever starts such processes (`distributed_executor_backend`)."""

from __future__ import annotations

from dataclasses import replace

from jaxengine.options.config import EngineConfig
from jaxengine.startup.group.cluster import placed_in_cluster


def placed(config: EngineConfig) -> EngineConfig:
    """The options with rank, count and address of hosts: as they are, of the environment, or of hosts that Ray starts now.

    Raises:
        ConfigError: nothing that is known started this process, or Ray cannot start the others.
    """
    if config.parallel.distributed_executor_backend != "ray":
        return replace(config, parallel=placed_in_cluster(config.parallel))
    from jaxengine.startup.group.ray_hosts import placed_by_ray

    return placed_by_ray(config)
