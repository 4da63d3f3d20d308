"""Random weights for measuring and testing without a checkpoint: seeded, cheap, the same whatever the sharding.

Drawing every number afresh would take most of a minute for a billion of them. One block of random numbers is drawn instead
and each tensor is that block, repeated, from an offset of its own. The block's length is prime, so rows of a matrix never
fall on the same place of the block and no two of them are equal.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxengine.weights.loader import READERS
from jaxengine.weights.placement import host_block, place
from jaxengine.weights.report import Progress, Tracker
from jaxengine.weights.rules import Array

BLOCK = 1_048_573
"""Numbers drawn: the largest prime under 2^20."""


def dummy(
    parameters: Mapping[str, jax.ShapeDtypeStruct], *, seed: int, progress: Progress | None = None
) -> dict[str, jax.Array]:
    """Make every parameter up.

    Matrices are uniform with a variance of one over their last axis, so that activations keep their size through the layers;
    vectors are near one, except biases, which are near zero.

    Args:
        parameters: Dotted path to shape, floating dtype and sharding (None: the first device).
        seed: Equal seeds give equal weights.
        progress: As for `loader.load`.
    """
    # Raw Philox words are stable over NumPy versions, which its distributions are not.
    uniform = (np.random.Philox(seed).random_raw(BLOCK) >> np.uint64(40)).astype(np.float32) / 2.0**23 - 1.0
    tracker = Tracker([math.prod(spec.shape) * spec.dtype.itemsize for spec in parameters.values()], progress)

    @functools.cache
    def block(dtype: np.dtype[Any], width: float, center: float) -> Array:
        return host_block(uniform * np.float32(width) + np.float32(center), dtype)

    def make(path: str) -> jax.Array:
        spec = parameters[path]
        shifted = np.roll(block(spec.dtype, *_distribution(path, spec.shape)), -(zlib.crc32(path.encode()) % BLOCK))
        tensor = np.resize(shifted, spec.shape)
        array = place(tensor, spec)
        tracker.add(tensor.nbytes)
        return array

    with ThreadPoolExecutor(READERS, thread_name_prefix="weights") as pool:
        return dict(zip(parameters, pool.map(make, parameters), strict=True))


def _distribution(path: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Half width and center of the uniform distribution of a parameter."""
    if len(shape) >= 2:
        return math.sqrt(3.0 / shape[-1]), 0.0
    return 0.02, 0.0 if path.endswith("bias") else 1.0
