"""One safetensors file: the library reads and checks its header, views are of the file mapped here.

The library's NumPy interface copies a tensor, and cannot give up the pages of one that has been consumed, which is what bounds
the memory of a load. Where tensors lie follows from the header: they fill the rest of the file without gaps, which the library
has checked, in the order that it tells.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from jaxengine.device.weights.rules import Array
from jaxengine.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
OTHER_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64}
"""Bits of a number of the types that no model here is read in."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies in its file: `nbytes` bytes at `offset` from the start of the file."""

    dtype_name: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The NumPy dtype, or None for a type that NumPy cannot hold."""
        return DTYPES.get(self.dtype_name)


class SafetensorsFile:
    """A mapped safetensors file.

    Raises:
        CheckpointError: not a safetensors file, or not all of one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            try:
                self.tensors: Mapping[str, StoredTensor] = _places(path, int.from_bytes(file.read(8), "little"))
            except SafetensorError as error:
                raise CheckpointError(_damage(path, error)) from None
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def view(self, name: str) -> Array:
        """The tensor as a read-only view of the mapped file: nothing is read until it is used."""
        tensor = self.tensors[name]
        if tensor.dtype is None:
            raise CheckpointError(
                f"{self.path}: tensor {name} has the dtype {tensor.dtype_name}, which is not supported"
            )
        count = math.prod(tensor.shape)
        return np.frombuffer(self._map, tensor.dtype, count, tensor.offset).reshape(tensor.shape)

    def expect(self, name: str) -> None:
        """Tell the system that the tensor is about to be read."""
        self._advise(name, mmap.MADV_WILLNEED)

    def release(self, name: str) -> None:
        """Give up the tensor's resident pages. Views stay valid: a later access reads the file again."""
        self._advise(name, mmap.MADV_DONTNEED)

    def _advise(self, name: str, advice: int) -> None:
        tensor = self.tensors[name]
        start = tensor.offset - tensor.offset % mmap.PAGESIZE
        if tensor.nbytes:
            self._map.madvise(advice, start, tensor.offset + tensor.nbytes - start)


def _places(path: Path, header_bytes: int) -> dict[str, StoredTensor]:
    """The tensors of a file by name, in the order of their places."""
    tensors, offset = {}, 8 + header_bytes
    with safe_open(path, framework="numpy") as file:
        for name in file.offset_keys():
            stored = file.get_slice(name)
            kind, shape = str(stored.get_dtype()), tuple(stored.get_shape())
            bits = 8 * DTYPES[kind].itemsize if kind in DTYPES else OTHER_BITS.get(kind)
            if bits is None:
                raise CheckpointError(f"{path}: tensor {name} has the dtype {kind}, which is not supported")
            tensors[name] = StoredTensor(kind, shape, offset, math.prod(shape) * bits // 8)
            offset += tensors[name].nbytes
    return tensors


def _damage(path: Path, error: SafetensorError) -> str:
    """What is wrong with a file that the library refuses: first of all whether all of it is there."""
    with path.open("rb") as file:
        content = file.read(8 + MAX_HEADER_BYTES)
    size, length = path.stat().st_size, int.from_bytes(content[:8], "little")
    try:
        entries = json.loads(content[8 : 8 + length])
        ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
        expected = 8 + length + int(max(ends))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return f"{path} is truncated or not a safetensors file ({size:,} bytes; {error}); download it again"
    if expected != size:
        state = "truncated" if size < expected else "too long"
        return f"{path} is {state}: expected {expected:,} bytes, found {size:,}; download it again"
    return f"{path} is corrupt: {error}; download it again"
