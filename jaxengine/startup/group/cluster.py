"""Which host of which this is, as a cluster says in the environment of what it starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxengine.errors import ConfigError
from jaxengine.options.parallel import ParallelConfig

EXTERNAL = ("external", "external_launcher")


@dataclass(frozen=True)
class Cluster:
    """Variables with the number of hosts, the number of this one, and the hosts' addresses, of which the first counts."""

    name: str
    size: str
    rank: str
    first: str


CLUSTERS = (
    Cluster("LeaderWorkerSet", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS"),
    Cluster("Cloud TPU", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"),
    Cluster("Slurm", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST"),
    Cluster("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_hnp_uri"),
)
"""The first of them that has set its variables is asked. A LeaderWorkerSet of TPU hosts sets those of Cloud TPU too, in which
the hosts are the same and the first may be another."""


def placed_in_cluster(parallel: ParallelConfig, environment: Mapping[str, str] = os.environ) -> ParallelConfig:
    """The options, with what the cluster says of hosts where `distributed_executor_backend` asks it.

    An address that is given stays.

    Raises:
        ConfigError: nothing that is known started this process, or what it says cannot be.
    """
    if parallel.distributed_executor_backend not in EXTERNAL:
        return parallel
    for cluster in CLUSTERS:
        if not all(environment.get(name) for name in (cluster.size, cluster.rank, cluster.first)):
            continue
        size, first = environment[cluster.size], environment[cluster.first]
        count = len(first.split(",")) if cluster.size == cluster.first else int(size)
        default = ParallelConfig.master_addr
        given = parallel.master_addr
        return replace(
            parallel,
            nnodes=count,
            node_rank=int(environment[cluster.rank]),
            master_addr=_first_host(first) if given == default else given,
        )
    known = "; ".join(f"{cluster.name}: {cluster.size}, {cluster.rank}, {cluster.first}" for cluster in CLUSTERS)
    raise ConfigError(
        "distributed_executor_backend='external' asks the environment which host this is, and it does not say "
        f"({known}). Give nnodes, node_rank and master_addr, and leave the option out"
    )


def _first_host(text: str) -> str:
    """Of `a,b`, of Slurm's `node[003-006,9]`, and of Open MPI's `1531576320.0;tcp://10.96.0.1,10.0.0.1:34911`."""
    if found := re.search(r"tcp://([^,:;]+)", text):
        return found[1]
    if found := re.match(r"([^,\[]+)\[([^,\-\]]+)", text):
        return found[1] + found[2]
    return text.split(",")[0]
