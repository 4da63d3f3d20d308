"""Matrices of int8 or float8 as they are, with scales beside them: one, or of outputs, groups of inputs or blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxengine.device.weights.formats import Format, Numbers, Part, expect, two_axes
from jaxengine.device.weights.mapped_file import StoredTensor
from jaxengine.device.weights.rules import Array

STORED = {"int8": "I8", "float8_e4m3fn": "F8_E4M3"}
SCALES = ("weight_scale", "weight_scale_inv")
"""Names of the same thing: both are multiplied with."""


@dataclass(frozen=True, kw_only=True)
class EightBit(Format):
    """A `Format`: `weight [out, in]` of `dtype`, and its scales.

    `block` is `(outputs, inputs)` that have one in common; None: each output has its own, or all have one. Scales of activations
    are not read: with `round_rows` each row is rounded over its own (`Numbers`), else none is rounded.
    """

    dtype: str
    block: tuple[int, int] | None = None
    round_rows: bool = False
    main = "weight"
    others = SCALES
    unread = ("input_scale", "activation_scale", "weight_shape")

    @property
    def numbers(self) -> Numbers:
        group = None if self.block is None else self.block[1]
        return Numbers(dtype=self.dtype, group=group, round_rows=self.round_rows)

    def shape(self, tensors: Mapping[str, StoredTensor]) -> tuple[int, int]:
        outputs, inputs = two_axes(tensors, "weight")
        expect(tensors, "weight", (outputs, inputs), STORED[self.dtype])
        name = next((name for name in SCALES if name in tensors), SCALES[0])
        allowed = self._scale_shapes(outputs, inputs)
        found = tensors[name].shape if name in tensors else ()
        expect(tensors, name, found if found in allowed else allowed[0], "F32", "BF16", "F16", "F8_E8M0")
        return outputs, inputs

    @property
    def parts(self) -> Mapping[str, Part]:
        return {"weight": self._weight, "scale": self._scale}

    def _weight(self, tensors: Mapping[str, Array]) -> Array:
        return tensors["weight"]

    def _scale(self, tensors: Mapping[str, Array]) -> Array:
        outputs = tensors["weight"].shape[0]
        scales = next(tensors[name] for name in SCALES if name in tensors).astype(np.float32)
        if self.block is None:
            return np.broadcast_to(scales.reshape(-1, 1), (outputs, 1))
        return np.repeat(scales, self.block[0], axis=0)[:outputs]

    def _scale_shapes(self, outputs: int, inputs: int) -> list[tuple[int, ...]]:
        """Those that are read, the usual one first."""
        if self.block is None:
            return [(outputs, 1), (outputs,), (1,), (), (1, 1)]
        return [(-(-outputs // self.block[0]), -(-inputs // self.block[1]))]
