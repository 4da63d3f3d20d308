"""The least time a step can take on a chip: reading the weights, or multiplying with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax

from jaxengine.runtime.memory import parameter_bytes
from xla_cache.chips import Chip


@dataclass(frozen=True)
class Roofline:
    """Figures of a model on one of its devices. Reading keys and values, and what devices say to each other, come on top.

    `layer_bytes` and `layer_flops` (per token) are of all matrices but the vocabulary's, whose `head_bytes` and `head_flops` (per
    row) belong to sampling.
    """

    chip: Chip
    layer_bytes: int
    layer_flops: float
    head_bytes: int
    head_flops: float

    @classmethod
    def of(
        cls, parameters: Mapping[str, jax.ShapeDtypeStruct], chip: Chip, *, vocab_size: int, num_devices: int
    ) -> Roofline:
        tables = {name: struct for name, struct in parameters.items() if struct.shape[0] == vocab_size}
        layers = {name: struct for name, struct in parameters.items() if name not in tables}
        # of two tables the embedding's is not read, a row of it is
        head = dict(list(tables.items())[-1:])
        return cls(
            chip,
            parameter_bytes(layers),
            2 * sum(math.prod(struct.shape) for struct in layers.values()) / num_devices,
            parameter_bytes(head),
            2 * sum(math.prod(struct.shape) for struct in head.values()) / num_devices,
        )

    def floor(self, tokens: int, *, sampling: bool) -> tuple[float, str]:
        """Seconds for `tokens` places (rows, when `sampling`), and what limits them: `memory` or `compute`."""
        weights, flops = (self.head_bytes, self.head_flops) if sampling else (self.layer_bytes, self.layer_flops)
        reading = weights / self.chip.memory_bandwidth
        multiplying = flops * tokens / self.chip.matrix_flops
        return (reading, "memory") if reading >= multiplying else (multiplying, "compute")
