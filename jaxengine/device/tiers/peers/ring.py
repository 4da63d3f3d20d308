"""Bytes in a ring of memory that other processes may read: the oldest give way to the newest.

    counter     the position of the oldest bytes that are still whole, 8 bytes
    (rest of the first 4 KiB)
    ring        the bytes at position p lie at p modulo its size, in one piece

Positions only ever grow. Before bytes are overwritten the counter is moved past them. A reader copies what it was told lies at a
position and then looks at the counter: if it has not passed that position, the copy is whole. Nobody waits for a reader, and a
reader that dies leaves nothing behind. The memory belongs to no file system: it goes with the last process that has it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jaxengine.device.tiers.peers.session import Bytes, ProtocolError

HEADER = 4096
ALIGNMENT = 64
HAS_SHARED_MEMORY = sys.platform.startswith("linux")
F_SEAL_FUTURE_WRITE = 0x0010
"""Linux's, of which Python's `fcntl` has no name: nobody who opens the memory after its maker can write to it."""


class Ring:
    """The writer's side. One thread appends at a time, others wait; any thread may read.

    Args:
        size: bytes that it holds; the system gives memory as it is first used.
        shared: whether other processes can be given the memory, as `descriptor`.
    """

    def __init__(self, size: int, *, shared: bool) -> None:
        self.size = size
        self.descriptor: int | None = None
        if shared:
            self.descriptor = os.memfd_create("jaxengine pages", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.descriptor, HEADER + size)
            self._map = mmap.mmap(self.descriptor, HEADER + size)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        else:
            self._map = mmap.mmap(-1, HEADER + size)
        self._counter = np.frombuffer(self._map, np.uint64, 1)
        self._bytes = np.frombuffer(self._map, np.uint8, offset=HEADER)
        self._appending = threading.Lock()
        self._ends: deque[tuple[int, int]] = deque()
        self._next = 0

    @property
    def oldest(self) -> int:
        """The position of the oldest bytes that are still whole."""
        return int(self._counter[0])

    def append(self, parts: Sequence[Bytes], length: int) -> int | None:
        """Copy bytes into the ring, `length` of them in one piece; their position, or None where they do not fit at all."""
        if length > self.size:
            return None
        with self._appending:
            position = self._place(length)
            end = position + length
            while self._ends and self._ends[0][0] < end - self.size:
                _, after = self._ends.popleft()
                self._counter[0] = after
            at = position % self.size
            for part in parts:
                source = np.frombuffer(part, np.uint8)
                np.copyto(self._bytes[at : at + source.size], source)
                at += source.size
            self._ends.append((position, end))
            self._next = -(-end // ALIGNMENT) * ALIGNMENT
        return position

    def read(self, position: int, length: int) -> NDArray[np.uint8] | None:
        """A copy of bytes that were appended; None when they have been overwritten."""
        return read_ring(self._counter, self._bytes, position, length)

    def close(self) -> None:
        """Let go of the memory. Nothing is called afterwards; closing twice is fine."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def _place(self, length: int) -> int:
        """Where the next bytes go: behind the last ones, or at the ring's beginning where they would not be in one piece."""
        at = self._next % self.size
        return self._next if at + length <= self.size else self._next + self.size - at


class RingView:
    """A reader's side, in another process.

    Args:
        descriptor: of the memory; it may be closed afterwards.

    Raises:
        OSError: it cannot be mapped, or its maker could take it away while it is read.
    """

    def __init__(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK or size <= HEADER:
            raise ProtocolError("memory that is no ring, or that may shrink while it is read")
        self._map = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        self._counter = np.frombuffer(self._map, np.uint64, 1)
        self._bytes = np.frombuffer(self._map, np.uint8, offset=HEADER)

    def read(self, position: int, length: int) -> NDArray[np.uint8] | None:
        """A copy of what lies at a position; None when it has been overwritten.

        Raises:
            ProtocolError: there is no such place in the ring.
        """
        if position % self._bytes.size + length > self._bytes.size:
            raise ProtocolError("a place that is not in the ring")
        return read_ring(self._counter, self._bytes, position, length)


def read_ring(
    counter: NDArray[np.uint64], ring: NDArray[np.uint8], position: int, length: int
) -> NDArray[np.uint8] | None:
    """A copy of `length` bytes at a position, or None when they were not whole until the end of the copy."""
    at = position % ring.size
    copy = ring[at : at + length].copy()
    return copy if int(counter[0]) <= position else None
