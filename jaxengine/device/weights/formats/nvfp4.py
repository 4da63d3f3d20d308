"""NVFP4: floats of 4 bits with a scale in float8 for each 16 inputs, and one more for all of a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxengine.device.weights.formats import Format, Numbers, Part, expect, groups, two_axes
from jaxengine.device.weights.formats.words import halves
from jaxengine.device.weights.mapped_file import StoredTensor
from jaxengine.device.weights.rules import Array

GROUP = 16


@dataclass(frozen=True, kw_only=True)
class Nvfp4(Format):
    """A `Format`: `packed` uint8 `[out, in / 2]`, the first of two inputs in the low bits, `weight_scale` float8 `[out, Q]`.

    `tensor` is the name of the scale of all, and `divides` whether others are divided by it and not multiplied with it.
    """

    packed: str
    tensor: str
    divides: bool
    unread = ("input_scale", "input_global_scale")

    @property
    def numbers(self) -> Numbers:
        return Numbers(dtype="float4_e2m1fn", group=GROUP, tensor_scale=True)

    @property
    def main(self) -> str:
        return self.packed

    @property
    def others(self) -> tuple[str, ...]:
        return "weight_scale", self.tensor

    def shape(self, tensors: Mapping[str, StoredTensor]) -> tuple[int, int]:
        outputs, octets = two_axes(tensors, self.packed)
        expect(tensors, self.packed, (outputs, octets), "U8")
        expect(tensors, "weight_scale", (outputs, groups(2 * octets, GROUP)), "F8_E4M3")
        expect(tensors, self.tensor, () if tensors.get(self.tensor, tensors[self.packed]).shape == () else (1,), "F32")
        return outputs, 2 * octets

    @property
    def parts(self) -> Mapping[str, Part]:
        return {"weight": self._weight, "scale": self._scale, "tensor_scale": self._tensor_scale}

    def _weight(self, tensors: Mapping[str, Array]) -> Array:
        return halves(tensors[self.packed])

    def _scale(self, tensors: Mapping[str, Array]) -> Array:
        return tensors["weight_scale"]

    def _tensor_scale(self, tensors: Mapping[str, Array]) -> Array:
        scale = tensors[self.tensor].reshape(1)
        return np.reciprocal(scale) if self.divides else scale


COMPRESSED = Nvfp4(packed="weight_packed", tensor="weight_global_scale", divides=True)
"""As compressed-tensors writes it, `nvfp4-pack-quantized`."""
MODELOPT = Nvfp4(packed="weight", tensor="weight_scale_2", divides=False)
"""As NVIDIA's ModelOpt does."""
