"""What accelerators are: published figures per device, as JAX counts devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One device of a kind.

    `device_kind` is what JAX calls it. `memory_bytes` is what the compiler or the driver grants a program, less than the label
    says. `memory_bandwidth` is in bytes/s, `matrix_flops` the dense bfloat16 peak in operations/s, `int8_ops` that of int8 (the
    same where none is published), `clock_hz` the clock that XLA's cycle estimates count. `link_bandwidth` is that of one link to
    another chip of a slice, in one direction, in bytes/s; None where a device has no links of its own.
    """

    name: str
    platform: str
    device_kind: str
    memory_bytes: int
    memory_bandwidth: float
    matrix_flops: float
    int8_ops: float
    clock_hz: float
    source: str
    link_bandwidth: float | None = None


@dataclass(frozen=True, kw_only=True)
class GpuChip(Chip):
    """What XLA must know of a GPU that it compiles for and cannot ask. Sizes in bytes, `compute` is (major, minor)."""

    compute: tuple[int, int]
    features: str
    cores: int
    fpus_per_core: int
    shared_per_core: int
    shared_per_block: int
    l2_bytes: int

    @property
    def target_config(self) -> str:
        """The text of XLA's `GpuTargetConfigProto`."""
        device = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 49152,
            "shared_memory_per_core": self.shared_per_core,
            "threads_per_core_limit": 2048,
            "core_count": self.cores,
            "fpus_per_core": self.fpus_per_core,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": round(self.memory_bandwidth),
            "l2_cache_size": self.l2_bytes,
            "clock_rate_ghz": self.clock_hz / 1e9,
            "device_memory_size": self.memory_bytes,
            "shared_memory_per_block_optin": self.shared_per_block,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
            "thread_dim_limit_x": 1024,
            "thread_dim_limit_y": 1024,
            "thread_dim_limit_z": 64,
        }
        major, minor = self.compute
        capability = f"cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {self.features} }}"
        fields = " ".join(f"{name}: {value}" for name, value in device.items())
        return (
            f'gpu_device_info {{ {fields} {capability} name: "{self.device_kind}" }} platform_name: "CUDA" '
            f'dnn_version_info {{ major: 9 minor: 10 patch: 0 }} device_description_str: "{self.device_kind}"'
        )


_TPU = (
    "bandwidths and peak: Cloud TPU documentation of the version, a link's from its chip's and the number of ports; memory: the "
    "limit that libtpu's compiler names"
)
_GPU = "XLA's own description of the device; peak: NVIDIA's data sheet, dense"

CHIPS: Mapping[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip(
            name="v4",
            platform="tpu",
            device_kind="TPU v4",
            memory_bytes=int(30.75 * GIB),
            memory_bandwidth=1.228e12,
            matrix_flops=275e12,
            int8_ops=275e12,
            clock_hz=1.05e9,
            source=_TPU,
            link_bandwidth=50e9,
        ),
        Chip(
            name="v5e",
            platform="tpu",
            device_kind="TPU v5 lite",
            memory_bytes=int(15.75 * GIB),
            memory_bandwidth=0.819e12,
            matrix_flops=197e12,
            int8_ops=393e12,
            clock_hz=1.5e9,
            source=_TPU,
            link_bandwidth=50e9,
        ),
        Chip(
            name="v5p",
            platform="tpu",
            device_kind="TPU v5",
            memory_bytes=int(95.74 * GIB),
            memory_bandwidth=2.765e12,
            matrix_flops=459e12,
            int8_ops=918e12,
            clock_hz=1.75e9,
            source=_TPU,
            link_bandwidth=100e9,
        ),
        Chip(
            name="v6e",
            platform="tpu",
            device_kind="TPU v6 lite",
            memory_bytes=int(31.25 * GIB),
            memory_bandwidth=1.64e12,
            matrix_flops=918e12,
            int8_ops=1836e12,
            clock_hz=1.75e9,
            source=_TPU,
            link_bandwidth=100e9,
        ),
        Chip(
            name="tpu7x",
            platform="tpu",
            device_kind="TPU7x",
            memory_bytes=int(94.75 * GIB),
            memory_bandwidth=3.69e12,
            matrix_flops=1153.5e12,
            int8_ops=1153.5e12,
            clock_hz=2.2e9,
            source=f"{_TPU}; each of a chip's two devices has half of its figures, the clock follows from the peak",
        ),
        GpuChip(
            name="a100",
            platform="gpu",
            device_kind="NVIDIA A100-SXM4-80GB",
            memory_bytes=85_100_068_864,
            memory_bandwidth=2.03904e12,
            matrix_flops=312e12,
            int8_ops=624e12,
            clock_hz=1.41e9,
            source=f"{_GPU} (SXM, 80 GB)",
            compute=(8, 0),
            features="NONE",
            cores=108,
            fpus_per_core=64,
            shared_per_core=167_936,
            shared_per_block=166_912,
            l2_bytes=41_943_040,
        ),
        GpuChip(
            name="h100",
            platform="gpu",
            device_kind="NVIDIA H100 80GB HBM3",
            memory_bytes=84_942_979_072,
            memory_bandwidth=3.35232e12,
            matrix_flops=989e12,
            int8_ops=1979e12,
            clock_hz=1.98e9,
            source=f"{_GPU} (SXM, 80 GB)",
            compute=(9, 0),
            features="ACCELERATED_FEATURES",
            cores=132,
            fpus_per_core=128,
            shared_per_core=233_472,
            shared_per_block=232_448,
            l2_bytes=52_428_800,
        ),
        GpuChip(
            name="h200",
            platform="gpu",
            device_kind="NVIDIA H200",
            memory_bytes=151_397_597_184,
            memory_bandwidth=4.8e12,
            matrix_flops=989e12,
            int8_ops=1979e12,
            clock_hz=1.98e9,
            source=f"{_GPU} (SXM, 141 GB)",
            compute=(9, 0),
            features="ACCELERATED_FEATURES",
            cores=132,
            fpus_per_core=128,
            shared_per_core=233_472,
            shared_per_block=232_448,
            l2_bytes=52_428_800,
        ),
    )
}
