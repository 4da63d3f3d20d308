"""Options of the devices, hosts and replicas of an engine."""

from __future__ import annotations

import os
from dataclasses import dataclass

from jaxengine.errors import ConfigError
from jaxengine.options.option import at_least, option, positive
from jaxengine.options.stages import read_layer_partition

DEVICES = ("auto", "cpu", "gpu", "cuda", "tpu")


def asked_platforms(device: str) -> tuple[str, ...]:
    """What JAX is to run on, the first that there is: `device`, or what JAX_PLATFORMS names; () is JAX's own choice."""
    if device != "auto":
        return (device,)
    return tuple(filter(None, os.environ.get("JAX_PLATFORMS", "").split(",")))


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Which devices the model runs on, and how it is spread over them."""

    device: str = option(
        "auto",
        "kind of device; auto is the best that JAX finds",
        choices=DEVICES,
        others="What other devices need is in examples/docs/other-devices.md",
    )
    tensor_parallel_size: int = option(
        1, "devices that share every layer", aliases=("tp",), check=at_least(1), shapes=True
    )
    pipeline_parallel_size: int = option(
        1,
        "stages that the layers are split over, one after the other, with tensor_parallel_size devices each; they work on "
        "different steps at once",
        aliases=("pp",),
        check=at_least(1),
        shapes=True,
    )
    pipeline_layer_partition: str | None = option(
        None,
        "layers of each stage, as 9,9,8; the default is as many each, and of what is left one more for those before the last",
        shapes=True,
    )
    enable_expert_parallel: bool = option(
        False,
        "give each of these devices whole experts of a mixture, and not a part of each; on a TPU also without it where such "
        "a part is no multiple of 128 channels",
        aliases=("ep",),
        shapes=True,
    )
    data_parallel_size: int = option(
        1,
        "replicas of the model: engines behind one server, each a process with devices of its own (tensor_parallel_size for each "
        "stage), or with its part of the cores",
        aliases=("dp",),
        check=at_least(1),
    )
    data_parallel_size_local: int | None = option(
        None, "replicas that share this machine (default: all)", aliases=("dpl",), check=at_least(1)
    )
    data_parallel_rank: int | None = option(
        None,
        "be this one of the replicas and no other, with its part of the machine: for a server each behind a balancer of yours",
        aliases=("dpn",),
        check=at_least(0),
    )
    data_parallel_external_lb: bool = option(
        False, "what data_parallel_rank means already: somebody else balances", aliases=("dpe",)
    )

    distributed_executor_backend: str = option(
        "mp",
        "who starts the processes of an engine: mp is this command, one on each host with nnodes and node_rank; external is a "
        "cluster, whose environment says which host this is and where the first one is (LeaderWorkerSet, Cloud TPU, Slurm, Open "
        "MPI); ray starts the other hosts on its nodes",
        choices=("mp", "uni", "external", "external_launcher", "ray"),
    )
    nnodes: int = option(
        1,
        "hosts that share one engine, each with as many of its devices, tensor_parallel_size for each stage; the first one "
        "answers requests and has the last stage, the others run the same command with their node_rank and --headless",
        check=at_least(1),
    )
    node_rank: int = option(0, "which of these hosts this is, from 0", check=at_least(0))
    master_addr: str = option("127.0.0.1", "address of the first host, as the others reach it")
    master_port: int = option(29501, "port on which the first host waits for the others", check=at_least(1))
    distributed_timeout_seconds: float = option(
        600.0, "how long hosts wait for each other when an engine starts", check=positive
    )

    def __post_init__(self) -> None:
        self._check_hosts()
        _ = self.layer_partition
        size, here, rank = self.data_parallel_size, self.replicas_here, self.data_parallel_rank
        if self.data_parallel_external_lb and rank is None:
            raise ConfigError("data_parallel_external_lb needs data_parallel_rank: which replica this server is")
        if rank is None and here != size:
            raise ConfigError(
                f"data_parallel_size_local={here} of data_parallel_size={size}: one server has replicas of one machine. Leave it "
                "out, or start a server for each replica, with data_parallel_rank"
            )
        if rank is not None and rank >= size:
            raise ConfigError(f"data_parallel_rank={rank} must be below data_parallel_size={size}")
        if size % here:
            raise ConfigError(f"data_parallel_size_local={here} must divide data_parallel_size={size}")

    @property
    def devices_each(self) -> int:
        """Devices of one engine: of all its stages."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def layer_partition(self) -> tuple[int, ...] | None:
        """What `pipeline_layer_partition` asks for."""
        return read_layer_partition(self.pipeline_layer_partition, self.pipeline_parallel_size)

    def _check_hosts(self) -> None:
        hosts, size, stages = self.nnodes, self.tensor_parallel_size, self.pipeline_parallel_size
        if self.node_rank >= hosts:
            raise ConfigError(f"node_rank={self.node_rank} must be below nnodes={hosts}")
        if stages == 1 and size % hosts:
            raise ConfigError(
                f"tensor_parallel_size={size} must be a multiple of nnodes={hosts}: each host has as many of the devices"
            )
        if stages % hosts and (hosts % stages or size % (hosts // stages)):
            raise ConfigError(
                f"nnodes={hosts} cannot share pipeline_parallel_size={stages} stages of tensor_parallel_size={size}: a host has "
                "one or more whole stages, or as many hosts have one together, each with as many of its devices"
            )
        if hosts > 1 and self.data_parallel_size > 1:
            raise ConfigError(
                f"data_parallel_size={self.data_parallel_size} with nnodes={hosts}: hosts that share an engine serve one "
                "replica. Start such hosts for each replica, behind a balancer of yours, and leave data_parallel_size out"
            )

    @property
    def replicas_here(self) -> int:
        """Replicas that share this machine."""
        return self.data_parallel_size_local or self.data_parallel_size

    @property
    def ranks(self) -> tuple[int, ...]:
        """The replicas behind this server."""
        rank = self.data_parallel_rank
        return tuple(range(self.data_parallel_size)) if rank is None else (rank,)

    def check_first(self) -> None:
        """Accept options of a host that answers requests.

        Raises:
            ConfigError: it is one of those that follow the first.
        """
        if self.node_rank:
            raise ConfigError(
                f"node_rank={self.node_rank} of nnodes={self.nnodes}: requests are answered by host 0. Run `jaxengine serve` "
                "here, with the same options and --headless"
            )

    def check_alone(self) -> None:
        """Accept options of a single engine, for those who have no more in one process.

        Raises:
            ConfigError: several replicas are asked for.
        """
        if len(self.ranks) > 1:
            size = self.data_parallel_size
            raise ConfigError(
                f"data_parallel_size={size} needs {size} processes, and this engine is in one: use `jaxengine serve "
                f"--data-parallel-size {size}`, AsyncLLM with enable_multiprocessing, or a process for each with "
                "data_parallel_rank"
            )
