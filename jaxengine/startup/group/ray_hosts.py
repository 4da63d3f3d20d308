"""The other hosts of an engine as Ray actors: Ray places, starts and watches them; steps travel as between any hosts.

Each actor has a process of its own that does what `jaxengine serve --headless` does, and each of the two dies with the other. An
actor that is lost is started again by Ray, where there is room for it, and joins the group again. All end with the program that
started them.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxengine.contract.messages import Begin
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.options.parallel import ParallelConfig

logger = logging.getLogger("jaxengine")

PASSED_ON = ("JAX", "XLA_", "LIBTPU_", "HF_", "TF_CPP_")
"""Beginnings of the names of environment variables that the other hosts get too; those of this program begin with JAXENGINE."""

SCRIPT = "from jaxengine.startup.group.ray_hosts import main; main()"

_started: list[Any] = []
"""The actors of the engine that this program has."""


def placed_by_ray(config: EngineConfig) -> EngineConfig:
    """Start the other hosts; the options of the first one, which is this.

    Ray's cluster is that of the environment (`RAY_ADDRESS`, or one that runs here), or a local one that is started. Without
    `nnodes` there are as many hosts as it takes nodes with the accelerators of this one.

    Raises:
        ConfigError: ray is not installed, or its cluster has too few nodes.
    """
    parallel = config.parallel
    try:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
    except ImportError:
        raise ConfigError(
            "distributed_executor_backend='ray' needs ray: pip install 'jaxengine[ray]'. Without it start each host with "
            "nnodes and node_rank"
        ) from None
    for actor in _started:
        ray.kill(actor)
    _started.clear()
    if not ray.is_initialized():
        ray.init(log_to_driver=True, logging_level=logging.WARNING)
    here = ray.util.get_node_ip_address()
    [node] = [node for node in ray.nodes() if node["NodeID"] == ray.get_runtime_context().get_node_id()]
    count = _num_hosts(parallel, node["Resources"])
    address = here if parallel.master_addr == ParallelConfig.master_addr else parallel.master_addr
    first = replace(parallel, nnodes=count, master_addr=address)
    if count == 1:
        return replace(config, parallel=first)
    each = _resources(node["Resources"], parallel.devices_each // count)
    bundles = [{**each, f"node:{node['NodeManagerAddress']}": 0.001}, *[each] * (count - 1)]
    group = placement_group(bundles, strategy="STRICT_SPREAD")
    if not group.wait(parallel.distributed_timeout_seconds):
        raise ConfigError(
            f"Ray has no {count} nodes with {each} free each, which nnodes={count} and {parallel.devices_each} devices "
            "(tensor_parallel_size x pipeline_parallel_size) need; `ray status` shows what there is"
        )
    environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    of_nodes = ray.util.placement_group_table(group)["bundles_to_node_id"]
    rest = [index for index, owner in of_nodes.items() if owner != node["NodeID"]][: count - 1]
    host = ray.remote(RayHost)
    for rank, index in enumerate(rest, start=1):
        begin = Begin(
            config=replace(config, parallel=replace(first, node_rank=rank)), log_level=logger.getEffectiveLevel()
        )
        strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
        options = host.options(
            num_cpus=each["CPU"],
            resources={name: amount for name, amount in each.items() if name not in ("CPU", "GPU")},
            num_gpus=each.get("GPU", 0),
            scheduling_strategy=strategy,
            max_restarts=-1,
        )
        _started.append(options.remote(pickle.dumps(begin), environment))
    logger.info("Ray starts %s beside this host, %s", f"{len(_started)} host{'s' if count > 2 else ''}", here)
    return replace(config, parallel=first)


class RayHost:
    """An actor that has a host's process, from its beginning to its end."""

    def __init__(self, begin: bytes, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(os.getpid())],
            stdin=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(begin)
        self._process.stdin.close()
        threading.Thread(target=self._end_with_process, daemon=True).start()

    def _end_with_process(self) -> None:
        self._process.wait()
        os._exit(1)


def main() -> None:
    """The whole life of a host's process, whose actor is told by its id on the command line."""
    from jaxengine.front.engine_process import EngineProcess
    from jaxengine.front.headless import FOLLOWER, run_headless
    from jaxengine.front.restarts import Supervision
    from jaxengine.startup.engine_process import die_with
    from jaxengine.startup.log import show_log

    die_with(int(sys.argv[1]))
    show_log("text")
    begin: Begin = pickle.loads(sys.stdin.buffer.read())
    sys.exit(run_headless(lambda _: EngineProcess(begin, entry=FOLLOWER), options=Supervision(), shutdown_s=0.0))


def _num_hosts(parallel: ParallelConfig, resources: Mapping[str, float]) -> int:
    """As many as were asked for, or as it takes for the devices."""
    here = int(resources.get("TPU", 0) or resources.get("GPU", 0))
    if parallel.nnodes > 1 or not here:
        return parallel.nnodes
    if parallel.devices_each > here and parallel.devices_each % here:
        raise ConfigError(
            f"{parallel.devices_each} devices (tensor_parallel_size x pipeline_parallel_size) are no multiple of the {here} of "
            "this node, which distributed_executor_backend='ray' takes of each"
        )
    return max(1, parallel.devices_each // here)


def _resources(resources: Mapping[str, float], devices: int) -> dict[str, float]:
    """What a host takes of a node that is like this one; of a TPU slice its name too, so that all are of one slice."""
    for kind in ("TPU", "GPU"):
        if resources.get(kind):
            slice_name = os.environ.get("TPU_NAME", "")
            named = {slice_name: 1.0} if kind == "TPU" and resources.get(slice_name) else {}
            return {"CPU": 1, kind: devices, **named}
    return {"CPU": 1}
