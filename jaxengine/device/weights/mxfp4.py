"""Matrices of experts in MXFP4, as gpt-oss is published: the 4 bits that they are, or the bfloat16 numbers they stand for.

`name_blocks` uint8 `[experts, out, in / 32, 16]` has two numbers of four bits a byte, the lower one first: a sign, two bits of
exponent and one of mantissa. `name_scales` uint8 `[experts, out, in / 32]` is the power of two, from 127, that multiplies 32 of
them. Together they are `name [experts, in, out]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np

from jaxengine.device.weights.rules import Array
from jaxengine.device.weights.safetensors_file import StoredTensor

if TYPE_CHECKING:
    from jaxengine.device.weights.checkpoint import TensorCheckpoint

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


class StoredExperts:
    """The 4 bits of each number, uint8 `[experts, in, out]`, an expert unpacked when it is looked at."""

    def __init__(self, blocks: Array) -> None:
        self._blocks = blocks
        self.shape = decoded_shape(blocks.shape)

    def __getitem__(self, number: int) -> Array:
        """`[in, out]`."""
        blocks = self._blocks[number]
        return np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(len(blocks), -1).T


def factors(scales: Array) -> Array:
    """float32 `[experts, in / 32, out]`, the powers of two that scales stand for."""
    return np.ldexp(np.float32(1), scales.astype(np.int32) - EXPONENT_OF_ONE).transpose(0, 2, 1)


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

    def as_stored(self) -> TensorCheckpoint:
        """The same with numbers of 4 bits, and their scales as tensors of their own."""
        return StoredCheckpoint(self._checkpoint, self._pairs)

    def view(self, name: str) -> Array:
        """The tensor, read-only; of one that is decoded as much as is used of an array."""
        if name not in self._pairs:
            return self._checkpoint.view(name)
        return cast(Array, DecodedExperts(*map(self._checkpoint.view, self._pairs[name])))

    def release(self, name: str) -> None:
        """Give up the host memory of a tensor that has been consumed."""
        for part in self._pairs.get(name, (name,)):
            self._checkpoint.release(part)


class StoredCheckpoint:
    """A `TensorCheckpoint` that has `name`, uint8 `[experts, in, out]`, and `name.scale`, float32 `[experts, in / 32, out]`."""

    def __init__(self, checkpoint: TensorCheckpoint, pairs: Mapping[str, tuple[str, str]]) -> None:
        self._checkpoint, self.path = checkpoint, checkpoint.path
        self._made: dict[str, tuple[str, Callable[[Array], Any]]] = {}
        stored = checkpoint.tensors
        parts = {part for pair in pairs.values() for part in pair}
        tensors = {name: tensor for name, tensor in stored.items() if name not in parts}
        for base, (blocks, scales) in pairs.items():
            experts, out_size, count = stored[scales].shape
            self._made |= {base: (blocks, StoredExperts), f"{base}.scale": (scales, factors)}
            tensors[base] = _unpacked("U8", decoded_shape(stored[blocks].shape), stored[blocks])
            tensors[f"{base}.scale"] = _unpacked("F32", (experts, count, out_size), stored[scales])
        self.tensors: Mapping[str, StoredTensor] = tensors

    def view(self, name: str) -> Array:
        """The tensor, read-only; of one that is made as much as is used of an array."""
        if name not in self._made:
            return self._checkpoint.view(name)
        source, make = self._made[name]
        return cast(Array, make(self._checkpoint.view(source)))

    def release(self, name: str) -> None:
        """Give up the host memory of a tensor that has been consumed."""
        self._checkpoint.release(self._made[name][0] if name in self._made else name)


def _unpacked(dtype_name: str, shape: tuple[int, ...], stored: StoredTensor) -> StoredTensor:
    return StoredTensor(dtype_name, shape, stored.offset, stored.nbytes)


def _decoded(blocks: StoredTensor, scales: StoredTensor) -> StoredTensor:
    return StoredTensor("BF16", decoded_shape(blocks.shape), blocks.offset, blocks.nbytes + scales.nbytes)
