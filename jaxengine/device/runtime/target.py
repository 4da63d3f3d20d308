"""What a platform is good at: the defaults that depend on where programs run, each with its reason."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from jaxengine.errors import ConfigError
from jaxengine.options.parallel import asked_platforms
from xla_cache.target import Target, TargetError, target


@dataclass(frozen=True, kw_only=True)
class PlatformDefaults:
    """Defaults for options that are left open.

    `page_size` tokens per KV page; `max_num_seqs` sequences at once; `max_num_batched_tokens` tokens a step;
    `max_kv_bytes` bounds the KV pool where memory is shared with everything else on the machine; `free_tokens` are the token
    places up to which a step is bound by reading bfloat16 weights, rounded down to a power of two for the chip with the fewest.
    """

    page_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_kv_bytes: int | None = None
    free_tokens: int = 1


DEFAULTS: Mapping[str, PlatformDefaults] = {
    # The page table of a step travels through scalar memory: 256 rows of 8K context at 64 tokens a page are 128 KiB of it,
    # and a DMA of 64 tokens is long enough to stream.
    "tpu": PlatformDefaults(page_size=64, max_num_seqs=256, max_num_batched_tokens=2048, free_tokens=128),
    # One TMA copy per page on Hopper: a tile of 64 tokens is the smallest that fills it.
    "gpu": PlatformDefaults(page_size=64, max_num_seqs=256, max_num_batched_tokens=2048, free_tokens=128),
    # Every padded row costs its share of arithmetic here, so fewer and smaller shapes; 4 GiB is vLLM's pool on CPUs too.
    "cpu": PlatformDefaults(page_size=32, max_num_seqs=64, max_num_batched_tokens=512, max_kv_bytes=4 << 30),
}


LOCAL = target("local")

MEMORY_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
GPU_MEMORY_FRACTION = 0.92
"""Of a GPU's memory, what JAX may have; the rest is left to the driver and to libraries. Its own default is 0.75."""


def choose_device(name: str) -> None:
    """Have JAX use the kind of device that is named (`auto` leaves it the choice), and see that there is one.

    If that is a GPU, JAX takes `GPU_MEMORY_FRACTION` of its memory, unless the environment says how much.

    Raises:
        ConfigError: there is none, it is of a kind that nothing is built for, or JAX has begun with another.
    """
    if not any(variable in os.environ for variable in MEMORY_FRACTIONS):
        os.environ[MEMORY_FRACTIONS[0]] = str(GPU_MEMORY_FRACTION)
    if name != "auto":
        jax.config.update("jax_platforms", {"gpu": "cuda"}.get(name, name))
    asked = ",".join(asked_platforms(name)) or "any"
    try:
        found = platform_of(jax.devices())
    except (RuntimeError, AssertionError) as error:  # which of them depends on the plugin that is missing
        reason = (str(error).splitlines() or ["its plugin is not installed"])[0]
        raise ConfigError(
            f"JAX finds no device of the platform that was asked for ({asked}): {reason}. `jaxengine doctor` shows what "
            "there is; device and JAX_PLATFORMS choose another"
        ) from None
    if found not in DEFAULTS:
        raise ConfigError(
            f"JAX's devices are of platform {found!r}; built are {', '.join(DEFAULTS)}: choose one with device. What "
            "another needs is in examples/docs/other-devices.md"
        )
    if name not in ("auto", found) and (name, found) != ("cuda", "gpu"):
        raise ConfigError(f"device={name!r} comes too late: this process has begun to use JAX on {found}")


def find_target(name: str, *, compiles: bool = True) -> Target:
    """The target of that name. Where nothing `compiles` for it, its devices are described and no compiler is needed.

    Raises:
        ConfigError: unknown, or something is missing to compile for it; the message says what to do.
    """
    try:
        found = target(name) if compiles else replace(target(name), described=True)
        found.devices()
    except TargetError as error:
        raise ConfigError(str(error)) from None
    return found


def platform_of(devices: Sequence[Any]) -> str:
    """`cpu`, `gpu` or `tpu` for a list of JAX devices."""
    platform = devices[0].platform
    return {"cuda": "gpu", "rocm": "gpu"}.get(platform, platform)


def select_devices(each: int, target: Target = LOCAL, *, stages: int = 1) -> list[Any]:
    """The first devices of the target, `each` of so many stages, one after the other; of this machine's, where several hosts
    share an engine, the first of each host. The last stage lies on the first host, which samples.

    Raises:
        ConfigError: there are fewer; the message says how many and how to get virtual ones on a CPU.
    """
    devices, count = target.devices(), each * stages
    if stages > 1 and count > len(devices):
        virtual = f" For a trial on the CPU set XLA_FLAGS=--xla_force_host_platform_device_count={count}."
        raise ConfigError(
            f"pipeline_parallel_size={stages} with tensor_parallel_size={each} needs {count} devices, and there are "
            f"{len(devices)} ({devices[0].device_kind}); use fewer.{virtual if devices[0].platform == 'cpu' else ''}"
        )
    if count > len(devices):
        sees = f"target {target.name} has" if target.compile_only else "JAX sees"
        hint = (
            f" For a trial on the CPU set XLA_FLAGS=--xla_force_host_platform_device_count={count}."
            if devices[0].platform == "cpu"
            else ""
        )
        raise ConfigError(
            f"tensor_parallel_size={count} needs {count} devices, and {sees} {len(devices)} "
            f"({devices[0].device_kind}). Use tensor_parallel_size={len(devices)} or fewer.{hint}"
        )
    hosts = _num_hosts(devices[:count], each) if target.compile_only else jax.process_count()
    if hosts == 1:
        return devices[:count]
    chosen = [device for host in reversed(range(hosts)) for device in _first_of_host(devices, host, count // hosts)]
    parts = (chosen[stage * each : (stage + 1) * each] for stage in range(stages))
    # of each stage in the order for which programs are compiled ahead
    return [device for part in parts for device in devices if device in part]


def _num_hosts(devices: Sequence[Any], each: int) -> int:
    """How many hosts so many devices of a slice are of; one where stages, of `each`, would lie across their borders."""
    hosts = len({device.process_index for device in devices})
    of_host = len(devices) // hosts
    return hosts if len(devices) % hosts == 0 and (of_host % each == 0 or each % of_host == 0) else 1


def _first_of_host(devices: Sequence[Any], host: int, count: int) -> Sequence[Any]:
    found = [device for device in devices if device.process_index == host]
    if count > len(found):
        raise ConfigError(
            f"each host needs {count} devices, and host {host} has {len(found)}: choose a tensor_parallel_size of at most "
            f"{len(found)} for each of the hosts, or a smaller pipeline_parallel_size"
        )
    return found[:count]


def device_memory_bytes(devices: Sequence[Any], target: Target = LOCAL, *, replicas: int = 1) -> int:
    """Bytes that one of the devices may use, one of this host where several have some: its own memory, or for a CPU what the
    machine has available, shared by its virtual devices and by so many replicas."""
    if target.chip is not None:
        return target.chip.memory_bytes
    device = next(device for device in devices if device.process_index == jax.process_index())
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    if device.platform != "cpu":
        return steady(host_memory_bytes())
    return steady(host_memory_bytes()) // max(1, len(jax.local_devices())) // replicas


def steady(size: int) -> int:
    """`size` rounded down, by an eighth at most.

    What a machine has available changes from start to start; the KV pool, and so the programs that earlier starts compiled,
    should not change with it.
    """
    step = 1 << max(0, size.bit_length() - 4)
    return size // step * step


def host_memory_bytes() -> int:
    """Bytes of host memory that are available now, within the control group's limit where there is one."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        available = min(available, max(0, int(text) - int(used.read_text())))
    return available
