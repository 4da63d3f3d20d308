"""One file of `torch.save`, memory-mapped: names, shapes and views of its tensors, without torch and without running anything.

Such a file is a zip archive: `NAME/data.pkl` is a pickle that describes the tensors, `NAME/data/0`, `NAME/data/1`, ... are their
numbers, uncompressed. A pickle is a program: this reader knows the few instructions that plain data needs, and of the functions
that a pickle may name only those that put a tensor together, each replaced by one of its own. Everything else is refused.
"""

from __future__ import annotations

import io
import math
import mmap
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from jaxengine.device.weights.mapped_file import StoredTensor
from jaxengine.device.weights.rules import Array
from jaxengine.errors import CheckpointError

MAX_PICKLE_BYTES = 64 << 20
"""Of the description alone; some hundred bytes a tensor."""

LOCAL_HEADER = struct.Struct("<26xHH")
"""Of a member of a zip archive: what is read here are the lengths of the name and of the extra field behind it."""

STORAGES: Mapping[str, str] = {
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "DoubleStorage": "F64",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
"""torch's names, and those of safetensors for the same numbers."""

INSTRUCTIONS = (
    *(pickle.PROTO, pickle.STOP, pickle.MARK, pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(
        pickle.BINFLOAT,
        pickle.BINUNICODE,
        pickle.EMPTY_TUPLE,
        pickle.TUPLE,
        pickle.TUPLE1,
        pickle.TUPLE2,
        pickle.TUPLE3,
    ),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.GLOBAL, pickle.BINPERSID, pickle.REDUCE, pickle.BUILD),
)


@dataclass(frozen=True, slots=True)
class _Storage:
    """A run of numbers: `count` of a type from byte `offset` of the file on."""

    dtype_name: str
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Where a tensor lies, and how many numbers further the next one along each axis is."""

    stored: StoredTensor
    strides: tuple[int, ...]


class PickledFile:
    """A mapped file of `torch.save`, which holds tensors by name and nothing else.

    Raises:
        CheckpointError: not such a file (those of torch before 1.6 are none), damaged, or with something else in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                content = _Archive(archive, self._map).state()
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot be read as a file of torch.save: {error}. If it is older than torch 1.6, or holds more than "
                "tensors, save it as safetensors where torch is installed"
            ) from None
        self._tensors: Mapping[str, _Tensor] = content
        self.tensors: Mapping[str, StoredTensor] = {name: tensor.stored for name, tensor in content.items()}

    def view(self, name: str) -> Array:
        """The tensor as a read-only view of the mapped file: nothing is read until it is used."""
        stored, strides = self._tensors[name].stored, self._tensors[name].strides
        assert stored.dtype is not None
        steps = [stride * stored.dtype.itemsize for stride in strides]
        return np.ndarray(stored.shape, stored.dtype, self._map, stored.offset, steps)

    def expect(self, name: str) -> None:
        """Tell the system that the tensor is about to be read."""
        self._advise(name, mmap.MADV_WILLNEED)

    def release(self, name: str) -> None:
        """Give up the tensor's resident pages. Views stay valid: a later access reads the file again."""
        self._advise(name, mmap.MADV_DONTNEED)

    def _advise(self, name: str, advice: int) -> None:
        tensor = self.tensors[name]
        start = tensor.offset - tensor.offset % mmap.PAGESIZE
        if tensor.nbytes:  # strides may make more numbers of fewer bytes
            self._map.madvise(advice, start, min(tensor.offset + tensor.nbytes, len(self._map)) - start)


class _Archive:
    """The zip archive around a pickle. Its errors are `ValueError`s with what is wrong."""

    def __init__(self, archive: zipfile.ZipFile, content: mmap.mmap) -> None:
        self._content = content
        self._members = {member.filename: member for member in archive.infolist()}
        described = [name for name in self._members if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(described) != 1:
            raise ValueError("it has no description of tensors (data.pkl)")
        self._pickle = described[0]
        self._root = self._pickle.removesuffix("data.pkl")
        order = self._members.get(f"{self._root}byteorder")
        if order is not None and self._bytes(order.filename) != b"little":
            raise ValueError("its numbers are not in little-endian order")

    def state(self) -> dict[str, _Tensor]:
        """The tensors by name."""
        if self._members[self._pickle].file_size > MAX_PICKLE_BYTES:
            raise ValueError(f"its description of tensors is longer than {MAX_PICKLE_BYTES:,} bytes")
        try:
            found = _Reader(self._bytes(self._pickle), self._storage).load()
        except (pickle.UnpicklingError, ValueError) as error:
            raise ValueError(str(error)) from None
        except Exception as error:  # a damaged pickle fails wherever it happens to
            raise ValueError(f"its description of tensors is damaged ({type(error).__name__}: {error})") from None
        if not isinstance(found, dict) or not found:
            raise ValueError("it holds no tensors by name")
        for name, tensor in found.items():
            if not isinstance(name, str) or not isinstance(tensor, _Tensor):
                raise ValueError(
                    f"what it calls {name[:100]!r} is no tensor" if isinstance(name, str) else "it names no tensors"
                )
        return found

    def _storage(self, dtype_name: str, key: str, count: int) -> _Storage:
        """The numbers that the pickle calls `key`."""
        name = f"{self._root}data/{key}"
        if name not in self._members:
            raise ValueError(f"the numbers {name!r} are missing")
        offset, size = self._span(name)
        itemsize = StoredTensor(dtype_name, (), 0, 0).dtype.itemsize  # type: ignore[union-attr]
        if not isinstance(count, int) or count < 0 or count * itemsize > size:
            raise ValueError(f"{name} has {size:,} bytes, too few for {count} numbers of {dtype_name}")
        return _Storage(dtype_name, offset, count)

    def _bytes(self, name: str) -> bytes:
        offset, size = self._span(name)
        return self._content[offset : offset + size]

    def _span(self, name: str) -> tuple[int, int]:
        """First byte and number of bytes of a member."""
        member = self._members[name]
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed")
        header = self._content[member.header_offset : member.header_offset + LOCAL_HEADER.size]
        if len(header) < LOCAL_HEADER.size:
            raise ValueError(f"{name} is cut off")
        offset = member.header_offset + LOCAL_HEADER.size + sum(LOCAL_HEADER.unpack(header))
        if offset + member.file_size > len(self._content):
            raise ValueError(f"{name} is cut off")
        return offset, member.file_size


class _Reader(pickle._Unpickler):
    """An unpickler of tensors by name: other instructions and names are refused."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        code[0]: pickle._Unpickler.dispatch[code[0]] for code in INSTRUCTIONS
    }
    stack: list[Any]

    def __init__(self, content: bytes, storage: Callable[[str, str, int], _Storage]) -> None:
        super().__init__(io.BytesIO(content))
        self._storage = storage

    def load(self) -> Any:
        """What the pickle describes.

        Raises:
            ValueError: it has other instructions than plain data needs.
        """
        try:
            return super().load()
        except KeyError as error:
            if isinstance(error.args[0], int):
                raise ValueError(
                    f"its pickle has the instruction {bytes([error.args[0]])!r}, which tensors need not"
                ) from None
            raise

    def find_class(self, module: str, name: str) -> Any:
        """Ours for the few names that stand for tensors and their types."""
        if (module, name) in ADMITTED:
            return ADMITTED[module, name]
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise ValueError(f"its pickle asks for {module}.{name}, which could run code; only tensors are read")

    def persistent_load(self, pid: Any) -> _Storage:
        """Numbers that lie beside the pickle."""
        kind, dtype_name, key, _, count = pid
        if kind != "storage" or dtype_name not in STORAGES.values() or not isinstance(key, str):
            raise ValueError("its pickle refers to something else than numbers")
        return self._storage(dtype_name, key, count)

    def load_build(self) -> None:
        """The attributes of a state dict (versions of modules) are no tensors, and are left."""
        self.stack.pop()

    dispatch[pickle.BUILD[0]] = load_build


def _rebuild_tensor(storage: _Storage, first: int, shape: Sequence[int], strides: Sequence[int], *_: Any) -> _Tensor:
    numbers = (first, *shape, *strides)
    if not all(type(number) is int and number >= 0 for number in numbers) or len(shape) != len(strides):
        raise ValueError("a tensor's shape, strides or offset are no numbers that count")
    last = first + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    count = math.prod(shape)
    if first > storage.count or (count and last >= storage.count):
        raise ValueError(f"a tensor of shape {tuple(shape)} reaches beyond its {storage.count} numbers")
    stored = StoredTensor(storage.dtype_name, tuple(shape), 0, 0)
    assert stored.dtype is not None
    size = stored.dtype.itemsize
    stored = StoredTensor(storage.dtype_name, tuple(shape), storage.offset + first * size, count * size)
    return _Tensor(stored, tuple(strides))


def _rebuild_parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


ADMITTED: Mapping[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
}
