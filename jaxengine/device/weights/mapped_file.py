"""Tensors that lie in a file as they are in memory: views of it, and what of it is resident."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxengine.device.weights.rules import Array
from jaxengine.errors import CheckpointError

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


class MappedFile:
    """A file whose tensors are known: `tensors` by name."""

    def __init__(self, path: Path, tensors: Mapping[str, StoredTensor]) -> None:
        self.path = path
        self.tensors = tensors
        with path.open("rb") as file:
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

    def bytes_of(self, name: str) -> Array:
        """The tensor's bytes as they are stored."""
        tensor = self.tensors[name]
        return np.frombuffer(self._map, np.uint8, tensor.nbytes, tensor.offset)

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
