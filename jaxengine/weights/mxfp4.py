"""Matrices of experts in MXFP4, as gpt-oss is published, read as the bfloat16 numbers that they stand for.

`name_blocks` uint8 `[experts, out, in / 32, 16]` has two numbers of four bits a byte, the lower one first: a sign, two bits of
exponent and one of mantissa. `name_scales` uint8 `[experts, out, in / 32]` is the power of two, from 127, that multiplies 32 of
them. Together they are `name [experts, in, out]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import ml_dtypes
import numpy as np

from jaxengine.weights.rules import Array
from jaxengine.weights.safetensors_file import StoredTensor

if TYPE_CHECKING:
    from jaxengine.weights.checkpoint import TensorCheckpoint

BLOCKS, SCALES = "_blocks", "_scales"
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NUMBERS = np.array([*MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES)], np.float32)
EXPONENT_OF_ONE = 127


class DecodedExperts:
    """`[experts, in, out]`, an expert decoded when it is looked at."""

    def __init__(self, blocks: Array, scales: Array) -> None:
        self._blocks, self._scales = blocks, scales
        self.shape = decoded_shape(blocks.shape)

    def __getitem__(self, number: int) -> Array:
        """`[in, out]` in bfloat16, which holds every such number."""
        blocks = self._blocks[number]
        numbers = np.stack([NUMBERS[blocks & 15], NUMBERS[blocks >> 4]], axis=-1).reshape(*blocks.shape[:2], -1)
        exponents = self._scales[number].astype(np.int32) - EXPONENT_OF_ONE
        decoded = np.ldexp(numbers, exponents[..., None]).astype(ml_dtypes.bfloat16)
        return cast(Array, decoded.reshape(len(blocks), -1).T)


def decoded_shape(blocks: tuple[int, ...]) -> tuple[int, ...]:
    """Of what blocks of this shape stand for."""
    experts, out_size, groups, size = blocks
    return experts, groups * size * 2, out_size


class DecodedCheckpoint:
    """A `TensorCheckpoint` whose pairs of blocks and scales are one tensor each; the others are as they are."""

    def __init__(self, checkpoint: TensorCheckpoint) -> None:
        self._checkpoint = checkpoint
        self.path = checkpoint.path
        stored = checkpoint.tensors
        bases = [name.removesuffix(BLOCKS) for name in stored if name.endswith(BLOCKS)]
        self._pairs = {base: (base + BLOCKS, base + SCALES) for base in bases if base + SCALES in stored}
        parts = {part for pair in self._pairs.values() for part in pair}
        self.tensors: Mapping[str, StoredTensor] = {
            **{name: tensor for name, tensor in stored.items() if name not in parts},
            **{base: _decoded(stored[blocks], stored[scales]) for base, (blocks, scales) in self._pairs.items()},
        }

    def view(self, name: str) -> Array:
        """The tensor, read-only; of one that is decoded as much as is used of an array."""
        if name not in self._pairs:
            return self._checkpoint.view(name)
        return cast(Array, DecodedExperts(*map(self._checkpoint.view, self._pairs[name])))

    def release(self, name: str) -> None:
        """Give up the host memory of a tensor that has been consumed."""
        for part in self._pairs.get(name, (name,)):
            self._checkpoint.release(part)


def _decoded(blocks: StoredTensor, scales: StoredTensor) -> StoredTensor:
    return StoredTensor("BF16", decoded_shape(blocks.shape), blocks.offset, blocks.nbytes + scales.nbytes)
