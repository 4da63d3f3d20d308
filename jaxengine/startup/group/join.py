"""How a process becomes one of the hosts of an engine: its link to the others, then JAX's own."""

from __future__ import annotations

import atexit
import ipaddress
import logging
import os
import platform
import socket
from collections.abc import Callable

import jax

import jaxengine
from jaxengine.contract.messages import EngineDead
from jaxengine.errors import ConfigError, EngineDeadError
from jaxengine.options.config import EngineConfig
from jaxengine.options.group_key import group_key
from jaxengine.startup.bundle import shaping
from jaxengine.startup.group.following import FollowingGroup, find_first_host
from jaxengine.startup.group.group import Alone, agree, differences
from jaxengine.startup.group.leading import LeadingGroup, gather_hosts
from jaxengine.startup.progress import Progress

logger = logging.getLogger("jaxengine")

SHUTDOWN_S = 5
"""How long JAX's processes wait for each other when they end."""

CONNECT_S = 60
"""How long JAX's processes wait for each other when they begin: all are there already."""


def join(
    config: EngineConfig, progress: Progress, on_lost: Callable[[EngineDead], None]
) -> LeadingGroup | FollowingGroup | Alone:
    """Meet the other hosts, see that all are to build the same, and have JAX see all devices.

    It comes before anything looks for devices. When a host is lost afterwards, `on_lost` is told in one line and the process
    ends: JAX would end it too, a minute later.

    Raises:
        ConfigError: the others do not come, or are to build something else.
    """
    parallel = config.parallel
    if parallel.nnodes == 1:
        return Alone()

    def end(line: str) -> None:
        on_lost(EngineDead(EngineDeadError(line), elsewhere=parallel.node_rank > 0))
        os._exit(1)

    hello = {"jaxengine": jaxengine.__version__, "Python": platform.python_version(), "jax": jax.__version__}
    group: LeadingGroup | FollowingGroup
    if parallel.node_rank == 0:
        group = gather_hosts(
            _listen(parallel.master_addr, parallel.master_port),
            parallel.nnodes,
            hello,
            key=group_key(),
            timeout_s=parallel.distributed_timeout_seconds,
            say=lambda text: progress.say("hosts", text),
            on_lost=end,
        )
    else:
        progress.say("hosts", f"looks for the first host at {parallel.master_addr}:{parallel.master_port}")
        group = find_first_host(
            parallel.master_addr,
            parallel.master_port,
            parallel.node_rank,
            parallel.nnodes,
            hello,
            key=group_key(),
            timeout_s=parallel.distributed_timeout_seconds,
            on_lost=end,
        )
    try:
        agree(group, "options", _compared(config), differences)
        _initialize(group, parallel.master_addr)
    except BaseException:
        group.leave()
        raise
    atexit.register(_end_at_once_if_lost, group)
    progress.say(
        "hosts", f"host {group.rank} of {group.size}, {len(jax.local_devices())} of {len(jax.devices())} devices"
    )
    return group


def _compared(config: EngineConfig) -> dict[str, str]:
    """The options that have to be the same on all hosts, as text."""
    others = {
        "load_format": config.model.load_format,
        "seed": config.model.seed,
        "kv_offloading_size": config.cache.kv_offloading_size,
        "warmup": config.compilation.warmup_mode,
        "nnodes": config.parallel.nnodes,
    }
    texts = {**shaping(config), **others}
    # A command line has words and tuples where a program may have numbers and lists.
    return {name: str(list(value) if isinstance(value, tuple) else value) for name, value in texts.items()}


def _initialize(group: LeadingGroup | FollowingGroup, address: str) -> None:
    """Start JAX's service on the first host, at a port that is free there, and connect all to it."""
    port = group.share("port of JAX", _free_port(address) if group.rank == 0 else None)
    if jax.config.values["jax_cpu_collectives_implementation"] in (None, "none"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator_address=f"{address}:{port}",
        num_processes=group.size,
        process_id=group.rank,
        coordinator_bind_address=f"{address}:{port}" if _is_loopback(address) else None,
        initialization_timeout=CONNECT_S,
        shutdown_timeout_seconds=SHUTDOWN_S,
        cluster_detection_method="deactivate",
    )


def _listen(address: str, port: int) -> socket.socket:
    """A listener on all of this host's addresses, or where the others are processes of this machine on its own alone."""
    try:
        return socket.create_server(("127.0.0.1" if _is_loopback(address) else "", port))
    except OSError as error:
        raise ConfigError(f"master_port={port} cannot be listened on: {error}. Choose another, on all hosts") from None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _free_port(address: str) -> int:
    with socket.create_server(("127.0.0.1" if _is_loopback(address) else "", 0)) as listener:
        return int(listener.getsockname()[1])


def _end_at_once_if_lost(group: LeadingGroup | FollowingGroup) -> None:
    """JAX's processes wait for each other when they end, which is in vain for one that is gone."""
    if isinstance(group, LeadingGroup) and group.lost is not None:
        os._exit(1)
