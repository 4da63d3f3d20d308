"""From one host array to one sharded device array, shard by shard."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.experimental.layout import Format

from jaxengine.device.weights.rules import Array, Made

ALIGNMENT = 64
"""Bytes. The CPU backend adopts a host buffer aligned to this instead of copying it."""


def place(tensor: Array | Made, target: jax.ShapeDtypeStruct) -> jax.Array:
    """Cut, cast and copy `tensor` to the devices of `target.sharding` (the first device when it is None), in its layout.

    Each distinct shard is made once on the host, in the target dtype, and all of them are on their devices when this returns:
    meanwhile the host holds `tensor` and one copy of it, nothing after. No part is looked at that no device of this host has.
    """
    sharding = target.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    devices_of: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(target.shape).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index or (), target.shape, strict=True))
        devices_of.setdefault(bounds, []).append(device)
    shards = []
    for bounds, devices in devices_of.items():
        block = empty_block(tuple(high - low for low, high in bounds), target.dtype)
        copy_part(tensor, tuple(slice(low, high) for low, high in bounds), block)
        shards += [jax.device_put(block, _format(target, device)) for device in devices]
    for shard in shards:
        shard.block_until_ready()  # until then the runtime holds on to the blocks
    return jax.make_array_from_single_device_arrays(target.shape, sharding, shards)


def _format(target: jax.ShapeDtypeStruct, device: jax.Device) -> jax.Device | Format:
    layout = target.format.layout
    return device if layout is None else Format(layout, jax.sharding.SingleDeviceSharding(device))


def copy_part(tensor: Array | Made, part: tuple[slice, ...], out: Array) -> None:
    """Write the numbers of `tensor` within `part` to `out`, in its dtype."""
    if isinstance(tensor, np.ndarray):
        np.copyto(out, tensor[part], casting="unsafe")
    else:
        tensor.fill(out, part)


def empty_block(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """A contiguous, aligned array of any numbers."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)
