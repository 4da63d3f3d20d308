"""What a replica has of a machine that several share: devices of its own, or on a CPU cores of its own.

A process takes its part before JAX looks for devices. Accelerators are parted by the variables that their libraries read; cores
by the process's affinity, which is where XLA, and the native kernels with it, look for how many threads to have.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxengine.errors import ConfigError
from jaxengine.options.parallel import ParallelConfig, asked_platforms

CHIP_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
"""How so many TPU chips of one host lie beside each other."""
TPU_PORT = 8476
"""Of the first replica; libtpu listens on one in each process."""
CPU_TOPOLOGY = Path("/sys/devices/system/cpu")


def take_part(parallel: ParallelConfig) -> str | None:
    """Have this process use the part of its replica, and say which; None where it has the machine for itself.

    Raises:
        ConfigError: the machine has fewer devices than the replicas need.
    """
    count, rank = parallel.replicas_here, parallel.data_parallel_rank
    if count == 1 or rank is None:
        return None
    index, platform = rank % count, _platform(parallel.device)
    if platform not in ("cpu", "gpu", "tpu"):
        return None  # nothing is built for it, which whoever looks for its devices will say
    if platform == "cpu":
        cores = part_of_cores(index, count, _ordered_cores())
        os.sched_setaffinity(0, cores)
        return f"replica {rank} has {_listed(cores, 'core')}"
    devices = part_of_devices(index, count, parallel.devices_each, _devices(platform))
    os.environ.update(visible(platform, devices, index))
    return f"replica {rank} has {_listed(devices, platform.upper())}"


def part_of_cores(index: int, count: int, cores: Sequence[int]) -> list[int]:
    """Cores of one of `count` replicas: neighbours, as many as others have or one more. Too few are shared."""
    if len(cores) < count:
        return [cores[index % len(cores)]]
    return list(cores[index * len(cores) // count : (index + 1) * len(cores) // count])


def part_of_devices(index: int, count: int, each: int, devices: Sequence[str]) -> list[str]:
    """Devices of one of `count` replicas, which have `each` of them.

    Raises:
        ConfigError: there are too few for all.
    """
    if count * each > len(devices):
        raise ConfigError(
            f"{count} replicas of {each} devices (tensor_parallel_size x pipeline_parallel_size) need {count * each} devices, "
            f"and this machine has {len(devices)}. Use data_parallel_size={max(1, len(devices) // each)} or fewer"
        )
    return list(devices[index * each : (index + 1) * each])


def visible(platform: str, devices: Sequence[str], index: int) -> Mapping[str, str]:
    """The variables that show a process these devices and no others.

    Raises:
        ConfigError: so many chips of a TPU cannot be had.
    """
    names = ",".join(devices)
    if platform == "gpu":
        return {"CUDA_VISIBLE_DEVICES": names}
    if len(devices) not in CHIP_BOUNDS:
        raise ConfigError(
            f"a replica can have {', '.join(map(str, CHIP_BOUNDS))} chips of a TPU host, not {len(devices)}: choose such a "
            "tensor_parallel_size"
        )
    port = str(TPU_PORT + index)
    return {
        "TPU_VISIBLE_CHIPS": names,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": CHIP_BOUNDS[len(devices)],
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": f"localhost:{port}",
        "TPU_PROCESS_PORT": port,
        "CLOUD_TPU_TASK_ID": "0",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }


def _platform(device: str) -> str:
    """What JAX will run on, told without loading it: nothing can be parted afterwards."""
    name = next(iter(asked_platforms(device)), None)
    if name is None:
        installed = {"tpu": ("libtpu",), "gpu": ("jax_cuda13_plugin", "jax_cuda12_plugin")}
        found = (kind for kind, plugins in installed.items() if any(map(_is_installed, plugins)) and _devices(kind))
        return next(found, "cpu")
    return {"cuda": "gpu"}.get(name, name)


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _devices(platform: str) -> list[str]:
    """The devices that this process may use, as the variables name them."""
    for variable in {"gpu": ("CUDA_VISIBLE_DEVICES",), "tpu": ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")}[platform]:
        if given := os.environ.get(variable):
            return [name.strip() for name in given.split(",")]
    files = {"gpu": ["nvidia[0-9]*"], "tpu": ["accel[0-9]*", "vfio/[0-9]*"]}[platform]
    return [str(number) for number in range(sum(len(list(Path("/dev").glob(pattern))) for pattern in files))]


def _ordered_cores() -> list[int]:
    """The cores that this process may use; threads of one core are neighbours, and so are cores of one socket."""

    def place(core: int) -> tuple[int, int, int]:
        try:
            topology = CPU_TOPOLOGY / f"cpu{core}" / "topology"
            package, number = (int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
        except (OSError, ValueError):
            return 0, core, core
        return package, number, core

    return sorted(os.sched_getaffinity(0), key=place)


def _listed(names: Sequence[object], kind: str) -> str:
    return f"{kind}{'s' if len(names) > 1 else ''} {', '.join(map(str, names))}"
