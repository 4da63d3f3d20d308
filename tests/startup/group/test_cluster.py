"""What clusters say in the environment."""

from __future__ import annotations

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.parallel import ParallelConfig
from jaxengine.startup.group.cluster import placed_in_cluster

OUTSIDE = ParallelConfig(distributed_executor_backend="external", tensor_parallel_size=8)


@pytest.mark.parametrize(
    ("environment", "placed"),
    [
        ({"LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "3", "LWS_LEADER_ADDRESS": "a-0.a.ns"}, (4, 3, "a-0.a.ns")),
        ({"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "t-0,t-1,t-2,t-3"}, (4, 1, "t-0")),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "node[003-004]"}, (2, 1, "node003")),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "n7,other[1-2]"}, (2, 0, "n7")),
        (
            {
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
            },
            (8, 5, "10.96.0.1"),
        ),
    ],
)
def test_a_cluster_says_which_host_this_is(environment: dict[str, str], placed: tuple[int, int, str]) -> None:
    found = placed_in_cluster(OUTSIDE, environment)
    assert (found.nnodes, found.node_rank, found.master_addr) == placed


def test_an_address_that_is_given_stays() -> None:
    given = ParallelConfig(distributed_executor_backend="external", tensor_parallel_size=2, master_addr="10.0.0.9")
    environment = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "a-0"}
    assert placed_in_cluster(given, environment).master_addr == "10.0.0.9"


def test_without_a_cluster_it_is_said_what_to_give() -> None:
    with pytest.raises(ConfigError, match="Give nnodes, node_rank and master_addr"):
        placed_in_cluster(OUTSIDE, {})


def test_options_are_asked_for_alone() -> None:
    environment = {"LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "3", "LWS_LEADER_ADDRESS": "a-0"}
    assert placed_in_cluster(ParallelConfig(), environment) == ParallelConfig()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nnodes": 2, "node_rank": 2, "tensor_parallel_size": 2}, "node_rank=2 must be below nnodes=2"),
        ({"nnodes": 3, "tensor_parallel_size": 4}, "must be a multiple of nnodes=3"),
        ({"nnodes": 2, "tensor_parallel_size": 2, "data_parallel_size": 2}, "serve one replica"),
        (
            {"nnodes": 2, "pipeline_parallel_size": 3, "tensor_parallel_size": 2},
            "cannot share pipeline_parallel_size=3",
        ),
        ({"nnodes": 4, "pipeline_parallel_size": 2, "tensor_parallel_size": 3}, "as many hosts have one together"),
    ],
)
def test_hosts_that_cannot_be(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ParallelConfig(**options)


@pytest.mark.parametrize(("hosts", "stages", "tensor"), [(2, 2, 1), (2, 4, 1), (4, 2, 2), (4, 2, 8), (2, 1, 4)])
def test_hosts_that_can_share_stages(hosts: int, stages: int, tensor: int) -> None:
    ParallelConfig(nnodes=hosts, pipeline_parallel_size=stages, tensor_parallel_size=tensor)
