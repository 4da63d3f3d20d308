"""How parameters lie in a device's memory."""

from __future__ import annotations

import math

from jax.experimental.layout import Format, Layout
from jax.sharding import Sharding

from pallas_kernels.storage import LANES

MOST_PADDING = 1.1
"""Times the bytes of a parameter that its rows may take, each padded to whole vectors."""


def parameter_place(shape: tuple[int, ...], sharding: Sharding | None, *, platform: str) -> Sharding | Format | None:
    """Where a parameter lies: on a TPU with its last axis along the vectors, as what reads it there wants it.

    Left to itself, XLA turns what pads less another way round: a table `[201088, 2880]` has tokens along its vectors, and looking
    some up first copied all of it, in every step (gpt-oss-20b on v6e: 1.2 GB and 11.6 million cycles, and 0.06 so;
    `benchmarks.full_size`). Parameters that it would not turn, or whose rows would be mostly padding, are left to XLA, which
    orders the axes before the last one as it likes (`grouped_scaled_matmul.tpu` reads scales so).
    """
    if platform != "tpu" or sharding is None or len(shape) < 2:
        return sharding
    *others, last = map(_padding, sharding.shard_shape(shape))
    if last <= min(others) or last > MOST_PADDING:
        return sharding
    return Format(Layout(tuple(range(len(shape)))), sharding)


def _padding(extent: int) -> float:
    """Times the bytes of an array that it takes with this axis along the vectors."""
    return math.ceil(extent / LANES) * LANES / extent
