"""GPUs that are compiled for without having one: what XLA would otherwise ask the driver."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

ENVIRONMENT = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
SAME = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 49152,
    "threads_per_core_limit": 2048,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
    "thread_dim_limit_x": 1024,
    "thread_dim_limit_y": 1024,
    "thread_dim_limit_z": 64,
}
"""What all of them have in common, as fields of XLA's `GpuDeviceInfoProto`; sizes in bytes."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device's kind and the rest of its `GpuDeviceInfoProto`, as XLA's own description of the device has it."""

    kind: str
    compute: tuple[int, int]
    features: str
    fields: dict[str, int | float]

    @property
    def target_config(self) -> str:
        """The text of XLA's `GpuTargetConfigProto`."""
        major, minor = self.compute
        capability = f"cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {self.features} }}"
        fields = " ".join(f"{name}: {value}" for name, value in (SAME | self.fields).items())
        return (
            f'gpu_device_info {{ {fields} {capability} name: "{self.kind}" }} platform_name: "CUDA" '
            f'dnn_version_info {{ major: 9 minor: 10 patch: 0 }} device_description_str: "{self.kind}"'
        )


_AMPERE: dict[str, int | float] = {
    "core_count": 108,
    "fpus_per_core": 64,
    "shared_memory_per_core": 167_936,
    "shared_memory_per_block_optin": 166_912,
    "l2_cache_size": 41_943_040,
    "clock_rate_ghz": 1.41,
}
_HOPPER: dict[str, int | float] = {
    "core_count": 132,
    "fpus_per_core": 128,
    "shared_memory_per_core": 233_472,
    "shared_memory_per_block_optin": 232_448,
    "l2_cache_size": 52_428_800,
    "clock_rate_ghz": 1.98,
}
GPUS = {
    "a100": Gpu(
        "NVIDIA A100-SXM4-80GB",
        (8, 0),
        "NONE",
        {**_AMPERE, "memory_bandwidth": 2_039_040_000_000, "device_memory_size": 85_100_068_864},
    ),
    "h100": Gpu(
        "NVIDIA H100 80GB HBM3",
        (9, 0),
        "ACCELERATED_FEATURES",
        {**_HOPPER, "memory_bandwidth": 3_352_320_000_000, "device_memory_size": 84_942_979_072},
    ),
    "h200": Gpu(
        "NVIDIA H200",
        (9, 0),
        "ACCELERATED_FEATURES",
        {**_HOPPER, "memory_bandwidth": 4_800_000_000_000, "device_memory_size": 151_397_597_184},
    ),
}


def missing() -> str | None:
    """What to install before this environment can compile for a GPU; None when nothing is missing."""
    if any(importlib.util.find_spec(f"jax_cuda{major}_plugin") is not None for major in (13, 12)):
        return None
    return "JAX's CUDA plugin: pip install 'jax[cuda13]' (4 GB, best in an environment of its own; no GPU needed)"


def devices(name: str, count: int) -> list[Any]:
    """`count` compile-only devices of one host.

    Raises:
        ModuleNotFoundError: JAX's CUDA plugin is not installed.
    """
    lacking = missing()
    if lacking is not None:
        raise ModuleNotFoundError(f"to compile for {name} this environment lacks {lacking}")
    from jax.experimental.topologies import get_topology_desc

    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    config = GPUS[name].target_config
    topology = get_topology_desc(platform="cuda", topology_name=name, target_config=config, topology=f"1x1x{count}")
    return list(topology.devices)
