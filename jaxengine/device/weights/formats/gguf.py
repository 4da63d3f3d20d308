"""GGUF's blocks: 32 or 256 inputs of an output one behind the other, with what scales them among the bytes.

A block stands for `scale * number - offset` of each group of inputs; what is kept is `(number - offset / scale) * scale`. The
layout of blocks is that of ggml (ggml-common.h); what they stand for to the last bit is what the `gguf` library says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxengine.device.weights.formats import Format, Numbers, Part
from jaxengine.device.weights.mapped_file import StoredTensor
from jaxengine.device.weights.rules import Array

BLOCKS = "blocks"
"""The last part of the name of a tensor `[..., out, bytes]`."""


class Groups(NamedTuple):
    """Of blocks `[N, bytes]`: `numbers [N, inputs]` of a block, from 0 on or signed; `scale [N, groups]` and, of types that have
    one, `offset`, both float32."""

    numbers: Array
    scale: Array
    offset: Array | None = None


@dataclass(frozen=True, kw_only=True)
class BlockType:
    """A type of ggml's: a block has so many `inputs` and `bytes`, and `group` inputs have a scale in common, and an offset where
    there are `offsets`. `dtype` is that in which a number is kept. `read` takes blocks `[N, bytes]` apart."""

    inputs: int
    bytes: int
    group: int
    dtype: str
    offsets: bool
    read: Callable[[Array], Groups]


def _half(blocks: Array, at: int) -> Array:
    """The float16 at a byte of each block: float32 `[N, 1]`."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Array, run: int) -> Array:
    """Numbers of 4 bits `[N, 2 bytes]`: of every `run` bytes first the low halves, then the high ones."""
    runs = packed.reshape(len(packed), -1, 1, run)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(len(packed), -1)


def _fifth_bits(packed: Array) -> Array:
    """The bits of 32 numbers, of 4 bytes: `[N, 32]`, each 0 or 16."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little") << 4


def _scales_and_minima(packed: Array) -> tuple[Array, Array]:
    """Eight scales and eight minima of 6 bits each, of 12 bytes: float32 `[N, 8]`."""
    low, middle, high = (packed[:, part : part + 4] for part in (0, 4, 8))
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 2) & 48)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | ((middle >> 2) & 48)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _q4_0(blocks: Array) -> Groups:
    return Groups(_nibbles(blocks[:, 2:], 16).astype(np.int8) - np.int8(8), _half(blocks, 0))


def _q4_1(blocks: Array) -> Groups:
    return Groups(_nibbles(blocks[:, 4:], 16), _half(blocks, 0), -_half(blocks, 2))


def _q5_0(blocks: Array) -> Groups:
    numbers = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return Groups(numbers.astype(np.int8) - np.int8(16), _half(blocks, 0))


def _q5_1(blocks: Array) -> Groups:
    return Groups(_nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8]), _half(blocks, 0), -_half(blocks, 2))


def _q8_0(blocks: Array) -> Groups:
    return Groups(np.ascontiguousarray(blocks[:, 2:]).view(np.int8), _half(blocks, 0))


def _q4_k(blocks: Array) -> Groups:
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    return Groups(_nibbles(blocks[:, 16:], 32), _half(blocks, 0) * scales, _half(blocks, 2) * minima)


def _q5_k(blocks: Array) -> Groups:
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    of_group = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]
    numbers = _nibbles(blocks[:, 48:], 32) | ((of_group & 1) << 4).reshape(len(blocks), -1)
    return Groups(numbers, _half(blocks, 0) * scales, _half(blocks, 2) * minima)


def _q6_k(blocks: Array) -> Groups:
    low = _nibbles(blocks[:, :128], 64)
    high = blocks[:, 128:192].reshape(len(blocks), 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    numbers = low | ((high & 3) << 4).reshape(len(blocks), -1)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return Groups(numbers.astype(np.int8) - np.int8(32), _half(blocks, 208) * scales)


def _mxfp4(blocks: Array) -> Groups:
    """The bits of floats, and of a power of two that multiplies them its exponent, from 127 on."""
    return Groups(_nibbles(blocks[:, 1:], 16), np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 127))


FLOAT = "float4_e2m1fn"
BLOCK_TYPES: Mapping[str, BlockType] = {
    "Q4_0": BlockType(inputs=32, bytes=18, group=32, dtype="int4", offsets=False, read=_q4_0),
    "Q4_1": BlockType(inputs=32, bytes=20, group=32, dtype="int4", offsets=True, read=_q4_1),
    "Q5_0": BlockType(inputs=32, bytes=22, group=32, dtype="int8", offsets=False, read=_q5_0),
    "Q5_1": BlockType(inputs=32, bytes=24, group=32, dtype="int8", offsets=True, read=_q5_1),
    "Q8_0": BlockType(inputs=32, bytes=34, group=32, dtype="int8", offsets=False, read=_q8_0),
    "Q4_K": BlockType(inputs=256, bytes=144, group=32, dtype="int4", offsets=True, read=_q4_k),
    "Q5_K": BlockType(inputs=256, bytes=176, group=32, dtype="int8", offsets=True, read=_q5_k),
    "Q6_K": BlockType(inputs=256, bytes=210, group=16, dtype="int8", offsets=False, read=_q6_k),
    "MXFP4": BlockType(inputs=32, bytes=17, group=32, dtype=FLOAT, offsets=False, read=_mxfp4),
}
"""Those whose matrices stay quantised, by ggml's name. Matrices of other types are read as what they stand for."""


@dataclass(frozen=True)
class GgufBlocks(Format):
    """A `Format`: `blocks [..., out, bytes]` of a type in `BLOCK_TYPES`."""

    type: str
    main = BLOCKS
    others = ()
    unread = ()

    @property
    def numbers(self) -> Numbers:
        own = BLOCK_TYPES[self.type]
        return Numbers(dtype=own.dtype, group=own.group, zeros=own.offsets)

    def shape(self, tensors: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        own = BLOCK_TYPES[self.type]
        *before, count = tensors[BLOCKS].shape
        if count % own.bytes:
            raise ValueError(f"rows of {count} bytes are no blocks of {self.type}, which have {own.bytes}")
        return (*before, count // own.bytes * own.inputs)

    @property
    def parts(self) -> Mapping[str, Part]:
        zero: dict[str, Part] = {"zero": self._zero} if BLOCK_TYPES[self.type].offsets else {}
        return {"weight": self._weight, "scale": self._scale, **zero, "dense": self._dense}

    def _weight(self, tensors: Mapping[str, Array]) -> Array:
        blocks, own = tensors[BLOCKS], BLOCK_TYPES[self.type]
        groups = self._groups(blocks)
        numbers = groups.numbers.reshape(*blocks.shape[:-1], -1)
        if groups.offset is not None and np.any(unscaled := _unscaled(groups)):
            of_inputs = np.repeat(unscaled.reshape(*blocks.shape[:-1], -1), own.group, axis=-1)
            numbers = np.where(of_inputs, 0, numbers)
        if own.dtype == "int8":
            return numbers.astype(np.int8)
        return (numbers if own.offsets or own.dtype == FLOAT else numbers + 8).astype(np.uint8)

    def _scale(self, tensors: Mapping[str, Array]) -> Array:
        groups = self._groups(tensors[BLOCKS])
        scale = groups.scale if groups.offset is None else np.where(_unscaled(groups), groups.offset, groups.scale)
        return scale.reshape(*tensors[BLOCKS].shape[:-1], -1)

    def _zero(self, tensors: Mapping[str, Array]) -> Array:
        groups = self._groups(tensors[BLOCKS])
        assert groups.offset is not None
        unscaled = _unscaled(groups)
        scale = np.where(groups.scale == 0, 1, groups.scale)
        zero = np.where(unscaled, 1, groups.offset / scale)
        if BLOCK_TYPES[self.type].dtype == "int4":  # which are kept as integers from -8 on
            zero = zero - 8
        return zero.astype(np.float32).reshape(*tensors[BLOCKS].shape[:-1], -1)

    def _dense(self, tensors: Mapping[str, Array]) -> Array:
        from gguf import GGMLQuantizationType, dequantize

        dense: Array = dequantize(tensors[BLOCKS], GGMLQuantizationType[self.type])
        return dense

    def _groups(self, blocks: Array) -> Groups:
        own = BLOCK_TYPES[self.type]
        return own.read(blocks.reshape(-1, own.bytes))


def _unscaled(groups: Groups) -> Array:
    """Groups of a scale of 0 that have an offset: all their numbers stand for it, which as number 0, zero 1 they do as well."""
    assert groups.offset is not None
    unscaled: Array = (groups.scale == 0) & (groups.offset != 0)
    return unscaled
