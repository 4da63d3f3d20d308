"""The least time a step can take on a chip: reading the weights, or multiplying with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np

from jaxengine.runtime.memory import parameter_bytes


class Speed(Protocol):
    """What `xla_cache.chips.Chip` says of a device: bytes/s and dense operations/s, of floating point and of int8."""

    @property
    def memory_bandwidth(self) -> float: ...

    @property
    def matrix_flops(self) -> float: ...

    @property
    def int8_ops(self) -> float: ...


@dataclass(frozen=True)
class NominalSpeed:
    """A guess at a device of which nothing is published, or that nobody named."""

    memory_bandwidth: float
    matrix_flops: float
    int8_ops: float


NOMINAL: Mapping[str, Speed] = {
    "cpu": NominalSpeed(20e9, 100e9, 100e9),
    "gpu": NominalSpeed(1.5e12, 300e12, 600e12),
    "tpu": NominalSpeed(0.8e12, 200e12, 400e12),
}
"""By platform; good for comparing steps until they were measured."""


@dataclass(frozen=True)
class Roofline:
    """Figures of a model on one of its devices. Reading keys and values, and what devices say to each other, come on top.

    `layer_bytes` and `layer_s` (seconds of multiplying, per token) are of all matrices but the vocabulary's, whose `head_bytes`
    and `head_s` (per row) belong to sampling.
    """

    speed: Speed
    layer_bytes: int
    layer_s: float
    head_bytes: int
    head_s: float

    @classmethod
    def of(
        cls, parameters: Mapping[str, jax.ShapeDtypeStruct], speed: Speed, *, vocab_size: int, num_devices: int
    ) -> Roofline:
        tables = {name: struct for name, struct in parameters.items() if struct.shape[0] == vocab_size}
        layers = {name: struct for name, struct in parameters.items() if name not in tables}
        # of two tables the embedding's is not read, a row of it is
        head = dict(list(tables.items())[-1:])
        return cls(
            speed,
            parameter_bytes(layers),
            sum(_multiplying(struct, speed) for struct in layers.values()) / num_devices,
            parameter_bytes(head),
            sum(_multiplying(struct, speed) for struct in head.values()) / num_devices,
        )

    def floor(self, tokens: int, *, sampling: bool) -> tuple[float, str]:
        """Seconds for `tokens` places (rows, when `sampling`), and what limits them: `memory` or `compute`."""
        weights, seconds = (self.head_bytes, self.head_s) if sampling else (self.layer_bytes, self.layer_s)
        reading, multiplying = weights / self.speed.memory_bandwidth, seconds * tokens
        return (reading, "memory") if reading >= multiplying else (multiplying, "compute")


def _multiplying(struct: jax.ShapeDtypeStruct, speed: Speed) -> float:
    """Seconds that one device would need to multiply one row with a parameter."""
    peak = speed.int8_ops if struct.dtype == np.int8 else speed.matrix_flops
    return 2 * math.prod(struct.shape) / peak
