"""The store of blocks in a directory: what is wrong with the disk costs hits and a warning, and nothing else."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from jaxengine.device.tiers.block_store import Block
from jaxengine.device.tiers.disk.block_file import DamagedError, decode, encode, read_whole, write_pieces
from jaxengine.device.tiers.disk.directory import BlockDirectory
from jaxengine.device.tiers.disk.eviction import evict, measure
from jaxengine.device.tiers.rest import RareWarnings, Rest

SPARE = 8
"""A look leaves one part in so many of the bytes free, and of that an engine may write half before its next look is done."""
LEFT_BEHIND_S = 600.0
"""How long nobody writes to a file aside before its writer counts as dead; as often it is looked at what is there."""
FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskStore:
    """Blocks in a directory, at most `max_bytes` of all engines that share it.

    A look at the directory, on a thread of the store's own, finds how many bytes there are and removes those that were not of
    use for longest. It is taken at the start, when the disk is full, and when this store has written a thirty-second part of
    `max_bytes` since the last; at a sixteenth part writing waits for it. By that two engines stay within `max_bytes` without
    knowing of each other, and each one more may pass it by a sixteenth part. One that only reads, or only writes, does not do
    the other.
    """

    source = "disk"

    def __init__(self, directory: BlockDirectory, max_bytes: int, *, reads: bool = True, writes: bool = True) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._may_read, self._may_write = reads, writes
        self._reads, self._writes = Rest(), Rest()
        self._warnings = RareWarnings()
        self._lock = threading.Lock()
        self._written = 0
        self._full = False
        self._look = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_house, name="kv-disk", daemon=True)
        if writes:
            self._thread.start()

    def has(self, keys: Sequence[bytes]) -> Sequence[bool]:
        """As in `BlockStore`: a file of that name is there."""
        if not self._may_read or self._reads.resting:
            return [False] * len(keys)
        return [os.path.exists(self._directory.path(key)) for key in keys]

    def fetch(self, key: bytes) -> Block | None:
        """As in `BlockStore`. A file with anything wrong in it is removed."""
        path = self._directory.path(key)
        if not self._may_read or self._reads.resting:
            return None
        try:
            block = decode(read_whole(path), key)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            self._warnings.warn("damaged", "a page on disk is damaged and was removed (%s: %s)", path, error)
            self.drop(key)
            return None
        except (OSError, MemoryError) as error:
            self._reads.failed()
            self._warnings.warn("read", "pages on disk cannot be read and are computed instead: %s", error)
            return None
        self._reads.worked()
        self._touch(path)
        return block

    def store(self, key: bytes, block: Block) -> bool:
        """As in `BlockStore`. It may not survive a crash of the machine, but never comes back as something else."""
        path = self._directory.path(key)
        if not self._may_write or self._writes.resting or self._closing.is_set():
            return False
        if os.path.exists(path):
            self._touch(path)
            return False
        pieces = encode(key, block)
        if not self._reserve(sum(map(len, pieces))):
            return False
        try:
            self._write(path, pieces)
        except OSError as error:
            self._writes.failed()
            what = "the disk is full" if error.errno in FULL else "pages cannot be written to disk"
            self._warnings.warn(what, "%s, and no page is kept there for now: %s", what, error)
            if error.errno in FULL:
                self._full = True
                self._look.set()
            return False
        self._writes.worked()
        return True

    def expect(self, keys: Sequence[bytes]) -> None:
        """As in `BlockStore`: nobody waits for a disk."""

    def renew(self, namespace: bytes) -> None:
        """As in `BlockStore`: keys say all that there is to say."""

    def drop(self, key: bytes) -> None:
        """As in `BlockStore`."""
        with suppress(OSError):
            os.unlink(self._directory.path(key))

    def close(self) -> None:
        """As in `BlockStore`. The files stay."""
        self._closing.set()
        self._look.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _write(self, path: str, pieces: Sequence[bytes | memoryview]) -> None:
        descriptor, aside = self._directory.open_aside()
        try:
            try:
                write_pieces(descriptor, pieces)
            finally:
                os.close(descriptor)
            self._directory.keep(aside, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(aside)
            raise

    def _touch(self, path: str) -> None:
        with suppress(OSError):  # one that is only read from cannot say what it reads
            os.utime(path)

    def _reserve(self, nbytes: int) -> bool:
        """Count bytes that are about to be written, and have a look taken when they have become many; False: no room for now."""
        allowed = self._max_bytes // (2 * SPARE)
        with self._lock:
            fits = self._written + nbytes <= allowed
            self._written += nbytes if fits else 0
            if self._written > allowed // 2:
                self._look.set()
        return fits

    def _keep_house(self) -> None:
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                self._take_look()
            except Exception as error:  # a thread that ends would end eviction, and so writing
                self._warnings.warn("look", "the directory of pages on disk cannot be looked through: %s", error)
            self._closing.wait(time.monotonic() - began)  # at most half of a processor, however often there is no room
            self._look.wait(LEFT_BEHIND_S)
            self._look.clear()

    def _take_look(self) -> None:
        self._directory.clear_aside(LEFT_BEHIND_S)
        with self._lock:
            before = self._written
        times, sizes = measure(self._directory, self._pause)
        total = sum(sizes)
        spare = self._max_bytes // SPARE
        to_free = max(total - (self._max_bytes - spare), total // SPARE if self._full else 0)
        self._full = False
        if to_free > 0:
            evict(self._directory, times, sizes, to_free, self._pause)
        with self._lock:
            self._written -= before

    def _pause(self) -> bool:
        """Let others have the processor and the disk."""
        return self._closing.wait(0.001)
