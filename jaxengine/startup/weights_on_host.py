"""Which layers' weights stay in the host's memory (`cpu_offload_gb`): each step copies them to the device, layer by layer."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Mapping

import jax

from jaxengine.device.runtime.memory import shard_bytes
from jaxengine.device.runtime.target import host_memory_bytes
from jaxengine.errors import ConfigError

logger = logging.getLogger("jaxengine")

GIB = 1 << 30
PLATFORMS = ("tpu",)
"""Where the compiler was seen to copy a layer's weights when it comes to them, and not all of them at once."""

HOST_MEMORY = "pinned_host"
LINK_BYTES_S = 32e9
"""From the host to a device by PCIe 4 or 5, for the warning; nothing is decided by it."""


def keep_on_host(
    parameters: Mapping[str, jax.ShapeDtypeStruct], gib: float, *, platform: str, here: bool
) -> dict[str, jax.ShapeDtypeStruct]:
    """The same with those of the first layers on the host, as many whole layers as hold `gib` GiB of each device's part.

    `here` says whether the devices are those of this host, whose memory can be looked at.

    Raises:
        ConfigError: they would have to come to a device in every step whose compiler was not seen to do that, or the host has
            not so much memory.
    """
    if not gib or platform == "cpu":
        if gib:
            logger.info("cpu_offload_gb=%g means nothing on a CPU: the device's memory is the host's", gib)
        return dict(parameters)
    if platform not in PLATFORMS:
        raise ConfigError(
            f"cpu_offload_gb={gib:g} is not built for {platform.upper()}s, where weights stay on the device; use a smaller "
            "dtype, quantization='int8' or 'int4', or more devices"
        )
    sizes = Counter[int]()
    for path, struct in parameters.items():
        if (layer := _layer_of(path)) is not None:
            sizes[layer] += shard_bytes(struct)
    before = itertools.accumulate((sizes[layer] for layer in sorted(sizes)), initial=0)
    chosen = {layer for layer, size in zip(sorted(sizes), before, strict=False) if size < gib * GIB}
    _tell(len(chosen), sum(sizes[layer] for layer in chosen), num_devices=len(jax.local_devices()) if here else 0)
    return {path: _on_host(struct) if _layer_of(path) in chosen else struct for path, struct in parameters.items()}


def _layer_of(path: str) -> int | None:
    head, *rest = path.split(".")
    return int(rest[0]) if head == "layers" else None


def _on_host(struct: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    assert struct.sharding is not None, "an accelerator has a mesh"
    sharding = struct.sharding.with_memory_kind(HOST_MEMORY)
    return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=sharding)


def _tell(num_layers: int, num_bytes: int, *, num_devices: int) -> None:
    if (needed := num_bytes * num_devices) > (available := host_memory_bytes()):
        raise ConfigError(
            f"cpu_offload_gb keeps {needed / GIB:.1f} GiB of weights of {num_devices} devices in the host's memory, which has "
            f"{available / GIB:.1f} GiB available; give it less"
        )
    logger.warning(
        "the weights of %d layers, %.2f GiB a device, stay in the host's memory: every step copies them, at %.0f GB/s in %.0f ms",
        num_layers,
        num_bytes / GIB,
        LINK_BYTES_S / 1e9,
        1e3 * num_bytes / LINK_BYTES_S,
    )
