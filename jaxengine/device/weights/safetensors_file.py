"""One safetensors file: the library reads and checks its header, views are of the file mapped here.

The library's NumPy interface copies a tensor, and cannot give up the pages of one that has been consumed, which is what bounds
the memory of a load. Where tensors lie follows from the header: they fill the rest of the file without gaps, which the library
has checked, in the order that it tells.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from safetensors import SafetensorError, safe_open

from jaxengine.device.weights.mapped_file import DTYPES, MappedFile, StoredTensor
from jaxengine.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

OTHER_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64}
"""Bits of a number of the types that no model here is read in."""


class SafetensorsFile(MappedFile):
    """A mapped safetensors file.

    Raises:
        CheckpointError: not a safetensors file, or not all of one.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            try:
                tensors = _places(path, int.from_bytes(file.read(8), "little"))
            except SafetensorError as error:
                raise CheckpointError(_damage(path, error)) from None
        super().__init__(path, tensors)


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
