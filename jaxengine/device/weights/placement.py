"""From one host array to one sharded device array, shard by shard."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jax.experimental.layout import Format

from jaxengine.device.weights.rules import Array, Made

Bounds = tuple[tuple[int, int], ...]
"""Where a part of an array begins and ends, by axis."""
ALIGNMENT = 64
"""Bytes. The CPU backend adopts a host buffer aligned to this instead of copying it."""
LEAST, SHARED = 1 << 16, 1 << 25
"""Bytes of the smallest block that lies together with others (`Together`), and of all in one array."""


def place(tensor: Array | Made, target: jax.ShapeDtypeStruct) -> jax.Array:
    """Cut, cast and copy `tensor` to the devices of `target.sharding` (the first device when it is None), in its layout.

    Each distinct shard is made once on the host, in the target dtype, and all of them are on their devices when this returns:
    meanwhile the host holds `tensor` and one copy of it, nothing after. No part is looked at that no device of this host has.
    """
    sharding = target.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    devices_of: dict[Bounds, list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(target.shape).items():
        devices_of.setdefault(bounds_of(index or (), target.shape), []).append(device)
    shards = []
    for bounds, devices in devices_of.items():
        block = empty_block(tuple(high - low for low, high in bounds), target.dtype)
        copy_part(tensor, tuple(slice(low, high) for low, high in bounds), block)
        shards += [jax.device_put(block, _format(target, device)) for device in devices]
    for shard in shards:
        shard.block_until_ready()  # until then the runtime holds on to the blocks
    return jax.make_array_from_single_device_arrays(target.shape, sharding, shards, dtype=target.dtype)


def adopt(array: jax.Array, target: jax.ShapeDtypeStruct) -> jax.Array:
    """An array of devices as `target` is laid out: without a copy where it lies so, by way of the host where dtypes differ."""
    if array.dtype != target.dtype:
        return place(np.asarray(array), target)
    sharding = target.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    layout = target.format.layout
    moved: jax.Array = jax.device_put(array, sharding if layout is None else Format(layout, sharding))
    return moved


def shares_memory(one: jax.Array, other: jax.Array) -> bool:
    """Whether two arrays lie in the same buffers."""
    places = [
        {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards if shard.data.nbytes}
        for array in (one, other)
    ]
    return one is other or bool(places[0] & places[1])


@dataclass(frozen=True)
class HostCopy:
    """What the devices of this host have of an array: numbers for `place` to put back there."""

    shape: tuple[int, ...]
    blocks: Mapping[Bounds, Array]

    @classmethod
    def of(cls, array: jax.Array) -> HostCopy:
        """Copy every distinct shard once."""
        shards = {bounds_of(shard.index, array.shape): shard.data for shard in array.addressable_shards}
        return cls(array.shape, {bounds: np.array(data) for bounds, data in shards.items()})

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write the shard within `part` to `out`."""
        np.copyto(out, self.blocks[bounds_of(part, self.shape)])


def bounds_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Bounds:
    """Where the part `index` of an array of `shape` lies."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _format(target: jax.ShapeDtypeStruct, device: jax.Device) -> jax.sharding.Sharding | Format:
    layout = target.format.layout
    memory = None if target.sharding is None else target.sharding.memory_kind
    place = jax.sharding.SingleDeviceSharding(device, memory_kind=memory)
    return place if layout is None else Format(layout, place)


def copy_part(tensor: Array | Made, part: tuple[slice, ...], out: Array) -> None:
    """Write the numbers of `tensor` within `part` to `out`, in its dtype."""
    if isinstance(tensor, np.ndarray):
        np.copyto(out, tensor[part], casting="unsafe")
    else:
        tensor.fill(out, part)


def empty_block(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """A contiguous, aligned array of any numbers."""
    size = math.prod(shape) * dtype.itemsize
    raw = _TOGETHER.take(size) if LEAST <= size < SHARED // 8 else np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


class Together:
    """Blocks that are too small for large pages of memory, cut from arrays that are not.

    A processor that multiplies with a matrix reads it a tenth to a quarter faster from pages of 2 MiB than from those of
    4 KiB; NumPy asks the system for them for arrays of 4 MiB and more. An array stays while any of its blocks does.
    """

    def __init__(self) -> None:
        self._lock, self._rest = threading.Lock(), np.empty(0, np.uint8)

    def take(self, size: int) -> Array:
        """`size` bytes and as many more as `ALIGNMENT`."""
        size += ALIGNMENT
        with self._lock:
            if len(self._rest) < size:
                self._rest = np.empty(SHARED, np.uint8)
            taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


_TOGETHER = Together()
