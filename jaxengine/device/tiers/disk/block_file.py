"""A block as a file: a header that says all of it, and the bytes of its parts.

    magic       8 bytes
    length      of the header, 4 bytes, little-endian
    checksum    of the header, 8 bytes: XXH3, 64 bits, as are those of the parts
    header      JSON: format, key, name, and of each part bounds, shape, type, offset and checksum
    parts       each at a multiple of 64 bytes

The key covers what an engine's pages depend on (`keys.py`), so that the header need not say it again. XXH3 is faster than the
memory, and no proof against a forger: who may write to the directory has its secret too.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import struct
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import xxhash
from numpy.typing import NDArray

from jaxengine.contract.page_name import PageName
from jaxengine.device.tiers.block_store import Block

FORMAT = 1
MAGIC = b"\x89jaxkv\r\n"
PREFIX = struct.Struct("<8sIQ")
ALIGNMENT = 64
MOST_BYTES = 1 << 32
"""No page is as large: what says it is was not written here."""


class DamagedError(Exception):
    """A file that is not, or no longer, the block that it should be."""


def encode(key: bytes, block: Block) -> list[bytes | memoryview]:
    """What to write, in order. The parts are not copied."""
    views = [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in block.parts.values()]
    parts: list[dict[str, Any]] = [
        {
            "bounds": bounds,
            "shape": part.shape,
            "dtype": part.dtype.name,
            "checksum": xxhash.xxh3_64_intdigest(view.data),
        }
        for (bounds, part), view in zip(block.parts.items(), views, strict=True)
    ]
    name = block.name
    fields = {
        "format": FORMAT,
        "key": key.hex(),
        "group": name.group,
        "digest": name.digest.hex(),
        "parent": name.parent.hex(),
        "tokens": name.tokens.hex(),
        "parts": parts,
    }
    header = json.dumps(fields).encode()
    pieces: list[bytes | memoryview] = [PREFIX.pack(MAGIC, len(header), xxhash.xxh3_64_intdigest(header)), header]
    size = PREFIX.size + len(header)
    for view in views:
        pieces += [bytes(-size % ALIGNMENT), view.data]
        size += -size % ALIGNMENT + view.nbytes
    return pieces


def decode(data: NDArray[np.uint8], key: bytes) -> Block:
    """The block that a file holds, its parts views of `data`.

    Raises:
        DamagedError: any byte of it is not what was written, or it was written under another key or format.
    """
    try:
        magic, length, checksum = PREFIX.unpack_from(data.data)
        header = data[PREFIX.size : PREFIX.size + length].tobytes()
        if magic != MAGIC or len(header) != length or xxhash.xxh3_64_intdigest(header) != checksum:
            raise DamagedError("it does not begin as a block does")
        fields = json.loads(header)
        if fields["format"] != FORMAT or fields["key"] != key.hex():
            raise DamagedError("it is of another format or another block")
        name = PageName(
            int(fields["group"]), *(bytes.fromhex(fields[field]) for field in ("digest", "parent", "tokens"))
        )
        parts, offset = {}, PREFIX.size + length
        for part in fields["parts"]:
            gap = data[offset : offset + -offset % ALIGNMENT]
            offset += -offset % ALIGNMENT
            dtype, shape = _dtype(part["dtype"]), tuple(map(int, part["shape"]))
            view = data[offset : offset + math.prod(shape) * dtype.itemsize]
            if gap.any() or xxhash.xxh3_64_intdigest(view.data) != part["checksum"]:
                raise DamagedError("bytes of it have changed")
            parts[tuple((int(low), int(high)) for low, high in part["bounds"])] = view.view(dtype).reshape(shape)
            offset += view.nbytes
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DamagedError(f"its header cannot be read: {error}") from error
    if offset != len(data):
        raise DamagedError(f"it has {len(data)} bytes and should have {offset}")
    return Block(name, parts)


def write_pieces(descriptor: int, pieces: Sequence[bytes | memoryview]) -> int:
    """Write all of it; how many bytes. A disk that takes a part of them raises what its next write does."""
    left = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    size = sum(map(len, left))
    while left:
        written = os.writev(descriptor, left[:512])
        if not written:
            raise OSError(errno.EIO, "nothing was written")
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]
    return size


def read_whole(path: str) -> NDArray[np.uint8]:
    """All bytes of a plain file.

    Raises:
        DamagedError: it is no plain file, is too large for a block, or shrinks while it is read.
        OSError: it is not there or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise DamagedError("it is no plain file of a block's size")
        data, done = np.empty(status.st_size, np.uint8), 0
        while done < len(data):
            count = os.preadv(descriptor, [data[done:].data], done)
            if not count:
                raise DamagedError("it ended while it was read")
            done += count
        return data
    finally:
        os.close(descriptor)


def _dtype(name: str) -> np.dtype[Any]:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    if dtype.hasobject:
        raise ValueError(f"a part is of type {name}")
    return dtype
