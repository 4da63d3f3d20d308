"""What the compiler's output depends on beside the program: versions, flags, settings of JAX, and the machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform as host
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax

PACKAGES = {
    "cpu": ("jax", "jaxlib", "flax"),
    "tpu": ("jax", "jaxlib", "flax", "libtpu"),
    "cuda": (
        "jax",
        "jaxlib",
        "flax",
        "jax-cuda13-plugin",
        "jax-cuda12-plugin",
        "nvidia-cudnn-cu13",
        "nvidia-cudnn-cu12",
    ),
}
FLAGS = {"cpu": ("XLA_FLAGS",), "tpu": ("XLA_FLAGS", "LIBTPU_INIT_ARGS"), "cuda": ("XLA_FLAGS",)}
SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_use_shardy_partitioner",
    "jax_debug_nans",
    "jax_debug_infs",
)


def environment(platform: str) -> dict[str, str]:
    """`versions.*`, `flags.*` and `settings.*` for programs of `platform` (cpu, tpu or cuda)."""
    parts = {f"versions.{name}": version for name in PACKAGES[platform] if (version := _version(name)) is not None}
    parts |= {f"flags.{name}": " ".join(sorted(os.environ.get(name, "").split())) for name in FLAGS[platform]}
    values = jax.config.values
    return parts | {f"settings.{name}": str(values[name]) for name in SETTINGS if name in values}


def device_fingerprint(devices: Sequence[Any]) -> dict[str, str]:
    """`target.*`: what is the same for devices that can run each other's executables, attached or compile-only."""
    platform = devices[0].platform
    parts = {
        "target.platform": {"gpu": "cuda"}.get(platform, platform),
        "target.device_kind": devices[0].device_kind,
        "target.devices": str(len(devices)),
    }
    if (hosts := len({device.process_index for device in devices})) > 1:
        parts["target.hosts"] = str(hosts)
    if platform == "cpu":
        # XLA compiles for the host's instruction set and cuts work for its number of threads
        parts["target.cpu"] = f"{host.machine()} {_cpu_features()}"
        parts["target.threads"] = str(available_cores())
    return parts


@cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def _cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return host.processor()
    found = {line.split(":")[0].strip(): line.split(":", 1)[1].strip() for line in reversed(lines) if ":" in line}
    features = found.get("flags") or found.get("Features") or ""
    digest = hashlib.sha256(" ".join(sorted(features.split())).encode()).hexdigest()[:12]
    return f"{found.get('model name', host.processor())} {digest}"


def available_cores() -> int:
    """Cores that this process may use, which is how many threads XLA runs a program with."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
