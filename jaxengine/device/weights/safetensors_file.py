"""One safetensors file, memory-mapped: names, shapes and views, checked against the file's size before anything is read.

The layout: an 8-byte little-endian header length, a JSON header `{name: {dtype, shape, data_offsets}}`, then the tensors'
bytes. The file is read here rather than through the safetensors package because its NumPy interface can neither give a view
nor give up the pages of a tensor that has been consumed, which is what bounds the memory of a load; of a damaged file it says
neither the tensor nor the bytes expected and found. It stays a declared dependency for its version range: what it writes is what
this reader is compared with, and `jaxengine doctor` tells the version that transformers reads with.
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

from jaxengine.device.weights.rules import Array
from jaxengine.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit: a longer header is not a safetensors file."""

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


class SafetensorsFile:
    """A mapped safetensors file.

    Raises:
        CheckpointError: not a safetensors file, or one whose size disagrees with its header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise CheckpointError(
                    f"{path} is truncated or not a safetensors file: its header should take {length:,} bytes and the file "
                    f"has {size:,}; download it again"
                )
            self.tensors: Mapping[str, StoredTensor] = _parse(path, file.read(length), start=8 + length, size=size)
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


def _parse(path: Path, header: bytes, *, start: int, size: int) -> dict[str, StoredTensor]:
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        tensors = {name: _stored(entry, start) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: its header cannot be read ({error!r})") from None
    position = start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if tensor.offset != position:
            raise CheckpointError(
                f"{path} is corrupt: tensor {name} should start at byte {position:,}, not {tensor.offset:,}"
            )
        position += tensor.nbytes
        if tensor.dtype is not None and tensor.nbytes != math.prod(tensor.shape) * tensor.dtype.itemsize:
            raise CheckpointError(
                f"{path} is corrupt: tensor {name} of {tensor.dtype_name}{list(tensor.shape)} cannot have {tensor.nbytes:,} bytes"
            )
    if position != size:
        state = "truncated" if size < position else "too long"
        raise CheckpointError(f"{path} is {state}: expected {position:,} bytes, found {size:,}; download it again")
    return tensors


def _stored(entry: Mapping[str, Any], start: int) -> StoredTensor:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    numbers = (begin, end, *shape)
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or end < begin:
        raise ValueError(f"offsets {begin}..{end} of shape {shape}")
    return StoredTensor(str(entry["dtype"]), shape, start + begin, end - begin)
