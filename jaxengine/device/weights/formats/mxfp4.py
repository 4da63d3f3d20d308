"""Matrices of experts in MXFP4, as gpt-oss is published: the 4 bits that they are, or the bfloat16 numbers they stand for.

`name_blocks` uint8 `[experts, out, in / 32, 16]` has two numbers of four bits a byte, the lower one first: a sign, two bits of
exponent and one of mantissa. `name_scales` uint8 `[experts, out, in / 32]` is the power of two, from 127, that multiplies 32 of
them. Together they are `name [experts, in, out]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import ml_dtypes
import numpy as np

from jaxengine.device.weights.formats import Format, Numbers, Part, expect
from jaxengine.device.weights.formats.words import FLOAT4, halves
from jaxengine.device.weights.mapped_file import StoredTensor
from jaxengine.device.weights.rules import Array

GROUP = 32
EXPONENT_OF_ONE = 127


@dataclass(frozen=True)
class Mxfp4(Format):
    """A `Format` of all experts together."""

    main = "blocks"
    others = ("scales",)
    unread = ()
    joint = "_"
    plain = ""

    @property
    def numbers(self) -> Numbers:
        return Numbers(dtype="float4_e2m1fn", group=GROUP)

    def shape(self, tensors: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        if len(tensors["blocks"].shape) != 4:
            raise ValueError(f"blocks are {list(tensors['blocks'].shape)}, and should have four axes")
        experts, outputs, count, octets = tensors["blocks"].shape
        expect(tensors, "blocks", (experts, outputs, count, GROUP // 2), "U8")
        expect(tensors, "scales", (experts, outputs, count), "U8")
        return experts, outputs, count * octets * 2

    @property
    def parts(self) -> Mapping[str, Part]:
        return {
            "weight": lambda tensors: cast(Array, Experts(tensors["blocks"])),
            "scale": lambda tensors: _factors(tensors["scales"]).transpose(0, 2, 1),
            "dense": lambda tensors: cast(Array, Experts(tensors["blocks"], tensors["scales"])),
        }


class Experts:
    """`[experts, in, out]`, made when an expert is looked at: bfloat16, which holds all such numbers; without `scales`, bits."""

    def __init__(self, blocks: Array, scales: Array | None = None) -> None:
        self._blocks, self._scales = blocks, scales
        experts, outputs, count, octets = blocks.shape
        self.shape = experts, count * octets * 2, outputs

    def __getitem__(self, number: int) -> Array:
        """`[in, out]`."""
        numbers = halves(self._blocks[number])
        if self._scales is not None:
            numbers = (FLOAT4[numbers] * _factors(self._scales[number])[..., None]).astype(ml_dtypes.bfloat16)
        return numbers.reshape(len(numbers), -1).T


def _factors(scales: Array) -> Array:
    """The powers of two that scales stand for, float32."""
    return np.ldexp(np.float32(1), scales.astype(np.int32) - EXPONENT_OF_ONE)
