"""From one host array to one sharded device array, shard by shard."""

from __future__ import annotations

import jax
import numpy as np

from jaxengine.weights.rules import Array

ALIGNMENT = 64
"""Bytes. The CPU backend adopts a host buffer aligned to this instead of copying it."""


def place(tensor: Array, target: jax.ShapeDtypeStruct) -> jax.Array:
    """Cut, cast and copy `tensor` to the devices of `target.sharding` (the first device when it is None).

    Each distinct shard is made once on the host, in the target dtype, and all of them are on their devices when this returns:
    meanwhile the host holds `tensor` and one copy of it, nothing after.
    """
    sharding = target.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    devices_of: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(target.shape).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index or (), target.shape, strict=True))
        devices_of.setdefault(bounds, []).append(device)
    shards = []
    for bounds, devices in devices_of.items():
        block = host_block(tensor[tuple(slice(low, high) for low, high in bounds)], target.dtype)
        shards += [jax.device_put(block, device) for device in devices]
    for shard in shards:
        shard.block_until_ready()  # until then the runtime holds on to the blocks
    return jax.make_array_from_single_device_arrays(target.shape, sharding, shards)


def host_block(source: Array, dtype: np.dtype) -> Array:
    """A contiguous, aligned copy of `source` in `dtype`, made in one pass."""
    size = source.size * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    block = raw[start : start + size].view(dtype).reshape(source.shape)
    np.copyto(block, source, casting="unsafe")
    return block
