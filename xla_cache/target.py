"""What executables are for: accelerators by the names that users know, whether this machine has one or not.

A named TPU or GPU yields compile-only devices: programs are lowered and compiled for them by the real compiler, and nothing
runs. `local` is what this machine has, and `cpu` its processor.
"""

from __future__ import annotations

import difflib
import importlib.util
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax

from xla_cache.chips import CHIPS, Chip, GpuChip
from xla_cache.environment import device_fingerprint

TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",  # no questions to a metadata server that only a TPU VM has
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # any value: it only stops a warning
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # compiling takes no chip away from anybody
}
CUDA_ENVIRONMENT = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}

FLAT = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
CUBIC = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8", 512: "8x8x8"}
"""Topologies by number of chips: v5e and v6e are meshes, the others tori of three axes."""

CHIPS_PER_HOST = 4


class TargetError(ValueError):
    """A target that is unknown, or that this environment cannot compile for. The message says what to do."""


@dataclass(frozen=True)
class DescribedDevice:
    """A device as far as a model can be laid out over it: meshes and shardings take it, and nothing is compiled for it."""

    id: int
    platform: str
    device_kind: str
    process_index: int = 0
    client: None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """What programs are compiled for.

    `chip` is None where the devices are this machine's own. `num_devices` counts JAX devices, `num_hosts` the machines of a
    slice. `topology` and `options` are what the compiler calls it. With `described` its devices are none of the compiler's, which
    then need not be installed.
    """

    name: str
    platform: str | None = None
    chip: Chip | None = None
    num_devices: int | None = None
    num_hosts: int = 1
    topology: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    described: bool = False

    @property
    def compile_only(self) -> bool:
        """Whether programs can be compiled for its devices but not run on them."""
        return self.chip is not None

    @property
    def extents(self) -> tuple[int, ...]:
        """Chips along each axis of its slice; empty where it is none."""
        return tuple(int(extent) for extent in self.topology.partition(":")[2].split("x")) if self.topology else ()

    @property
    def missing(self) -> str | None:
        """What to install before this environment can compile for it; None when nothing is missing."""
        if self.platform == "tpu" and importlib.util.find_spec("libtpu") is None:
            return "libtpu: pip install 'jaxengine[tpu]' (no TPU needed)"
        if isinstance(self.chip, GpuChip) and not _has_cuda_plugin():
            return "JAX's CUDA plugin: pip install 'jaxengine[cuda]' (4 GB, best in an environment of its own; no GPU needed)"
        return None

    def devices(self) -> list[Any]:
        """All its devices: the machine's own, compile-only ones, or `DescribedDevice`s.

        Raises:
            TargetError: something is not installed; the message says what.
        """
        if self.chip is not None and self.described:
            chip, count = self.chip, self.num_devices or 1
            hosts = (number * self.num_hosts // count for number in range(count))
            return [DescribedDevice(number, chip.platform, chip.device_kind, host) for number, host in enumerate(hosts)]
        if self.missing is not None:
            raise TargetError(f"to compile for {self.name} this environment lacks {self.missing}")
        if isinstance(self.chip, GpuChip):
            return _gpu_devices(self.chip)
        if self.chip is not None:
            return _tpu_devices(self.topology, tuple(self.options.items()))
        return list(jax.devices() if self.platform is None else jax.devices(self.platform))

    def fingerprint(self, num_devices: int | None = None) -> dict[str, str]:
        """What is equal for devices that can run each other's executables, attached or compile-only."""
        return device_fingerprint(self.devices()[:num_devices])


def target(name: str) -> Target:
    """The target of that name: see `targets`.

    Raises:
        TargetError: unknown; the message lists the known ones.
    """
    found = TARGETS.get(name.lower())
    if found is None:
        nearest = difflib.get_close_matches(name.lower(), TARGETS, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise TargetError(f"unknown target {name!r}.{hint} Known are {', '.join(TARGETS)}.")
    return found


def targets() -> list[Target]:
    """Every target, in the order of the generations."""
    return list(TARGETS.values())


def _define() -> Iterator[Target]:
    yield Target(name="local")
    yield Target(name="cpu", platform="cpu")
    # v4, v5p and tpu7x are counted in cores, two a chip, v5e and v6e in chips; so their users write them
    yield from _slices("v4", CUBIC, cores_per_chip=2, devices_per_chip=1, chip_config_name="megacore")
    yield from _slices("v5e", FLAT)
    yield from _slices("v5p", CUBIC, cores_per_chip=2, devices_per_chip=1)
    yield from _slices("v6e", FLAT)
    yield from _slices("tpu7x", {1: "1x1x1", **CUBIC}, cores_per_chip=2, devices_per_chip=2)
    for chip in CHIPS.values():
        if isinstance(chip, GpuChip):
            yield Target(name=chip.name, platform="gpu", chip=chip, num_devices=1)


def _slices(
    chip: str, topologies: Mapping[int, str], *, cores_per_chip: int = 1, devices_per_chip: int = 1, **options: Any
) -> Iterator[Target]:
    for chips, topology in topologies.items():
        one_host = chips <= CHIPS_PER_HOST or (chips == 8 and topologies is FLAT)
        bounds = tuple(int(extent) for extent in topology.split("x"))
        if one_host and (chips == 1 or chips == 8):
            # the compiler assumes hosts of 2x2 chips; one chip, and eight on one host, have to be spelled out
            options = {**options, "chips_per_host_bounds": (*bounds, 1, 1)[:3]}
        else:
            options = {key: value for key, value in options.items() if key != "chips_per_host_bounds"}
        yield Target(
            name=f"{chip}-{chips * cores_per_chip}",
            platform="tpu",
            chip=CHIPS[chip],
            num_devices=math.prod(bounds) * devices_per_chip,
            num_hosts=1 if one_host else chips // CHIPS_PER_HOST,
            topology=f"{chip}:{topology}",
            options=options,
        )


TARGETS: Mapping[str, Target] = {found.name: found for found in _define()}


@cache
def _tpu_devices(topology: str, options: tuple[tuple[str, Any], ...]) -> list[Any]:
    for name, value in TPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from jax.experimental.topologies import get_topology_desc

    return list(get_topology_desc(platform="tpu", topology_name=topology, **dict(options)).devices)


@cache
def _gpu_devices(chip: GpuChip) -> list[Any]:
    for name, value in CUDA_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from jax.experimental.topologies import get_topology_desc

    found = get_topology_desc(
        platform="cuda", topology_name=chip.name, target_config=chip.target_config, topology="1x1x1"
    )
    return list(found.devices)


def _has_cuda_plugin() -> bool:
    return any(importlib.util.find_spec(f"jax_cuda{major}_plugin") is not None for major in (13, 12))
