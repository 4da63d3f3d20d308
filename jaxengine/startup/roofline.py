"""The least time a step can take on a chip: reading the weights, or multiplying with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np

from jaxengine.device.layers.schemes import EMBEDDING, HEAD, TABLE
from jaxengine.device.layers.schemes.coded import is_coded
from jaxengine.device.runtime.memory import parameter_bytes
from pallas_kernels.coded_matmul.coding import plain_shape


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
    and `head_s` (per row) belong to sampling, and the experts', which take `expert_bytes` in all. Of those a token takes the
    share `chosen`, each expert being as likely as any other.
    """

    speed: Speed
    layer_bytes: int
    layer_s: float
    head_bytes: int
    head_s: float
    expert_bytes: int = 0
    chosen: float = 0.0

    @classmethod
    def of(
        cls,
        parameters: Mapping[str, jax.ShapeDtypeStruct],
        speed: Speed,
        *,
        num_devices: int,
        chosen: float = 0.0,
    ) -> Roofline:
        modules = {name.rpartition(".")[0] for name in parameters if name.rpartition(".")[2] == TABLE}
        tables = {name: struct for name, struct in parameters.items() if name.rpartition(".")[0] in modules}
        experts = {name: struct for name, struct in parameters.items() if len(struct.shape) == 3}
        layers = {name: struct for name, struct in parameters.items() if name not in tables and name not in experts}
        # of other tables rows are read
        multiplied = (HEAD if HEAD in tables else EMBEDDING).removesuffix(TABLE)
        head = {name: struct for name, struct in tables.items() if name.startswith(multiplied)}
        return cls(
            speed,
            _read(layers),
            (_multiplying(layers, speed) + chosen * _multiplying(experts, speed)) / num_devices,
            _read(head),
            _multiplying(head, speed) / num_devices,
            _read(experts),
            chosen,
        )

    def floor(self, tokens: int, *, sampling: bool) -> tuple[float, str]:
        """Seconds for `tokens` places (rows, when `sampling`), and what limits them: `memory` or `compute`."""
        touched = self.layer_bytes + self.expert_bytes * (1 - (1 - self.chosen) ** tokens)
        weights, seconds = (self.head_bytes, self.head_s) if sampling else (touched, self.layer_s)
        reading, multiplying = weights / self.speed.memory_bandwidth, seconds * tokens
        return (reading, "memory") if reading >= multiplying else (multiplying, "compute")


def _read(parameters: Mapping[str, jax.ShapeDtypeStruct]) -> int:
    """Bytes of them that one device reads: behind rows that are coded lies what plain ones would need, half a byte a number."""
    coded = (num_numbers(struct) for struct in parameters.values() if is_coded(struct))
    return parameter_bytes(parameters) - sum(coded) // 2


def _multiplying(parameters: Mapping[str, jax.ShapeDtypeStruct], speed: Speed) -> float:
    """Seconds that one device would need to multiply one row with each parameter."""
    peaks = {True: speed.int8_ops, False: speed.matrix_flops}
    return sum(2 * num_numbers(struct) / peaks[struct.dtype == np.int8] for struct in parameters.values())


def num_numbers(struct: jax.ShapeDtypeStruct) -> int:
    """How many a parameter has: in bytes without a sign there are two each, of 4 bits, and rows that are coded have a head."""
    if is_coded(struct):
        return math.prod(plain_shape(struct.shape) or ())
    return math.prod(struct.shape) * (2 if struct.dtype == np.uint8 else 1)
