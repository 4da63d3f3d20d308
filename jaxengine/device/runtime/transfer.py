"""From an array of the host to the devices of a mesh, in whatever way involves no other process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax


def put(array: Any, sharding: jax.sharding.Sharding | None) -> jax.Array:
    """The array of `sharding`, where every process has the whole of `array`; None is the first device.

    To a sharding that spans processes `jax.device_put` is a collective, which checks that all bring the same and waits for all.
    """
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    if not sharding.addressable_devices:
        return elsewhere(array.shape, sharding, array.dtype)
    return jax.make_array_from_process_local_data(sharding, array, array.shape)


def elsewhere(shape: Sequence[int], sharding: jax.sharding.Sharding, dtype: Any) -> jax.Array:
    """What stands on this host for an array of which it has no part."""
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, [], dtype=dtype)
