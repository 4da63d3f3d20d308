"""A directory of kept programs that many processes read and write at once.

    records/<key>.json     sealed JSON, one per program
    objects/<sha256>.zst   the compressed executable, under the digest of its bytes

An object is in place before a record names it, both are written whole, and equal content has an equal name: two writers can
only agree, and a writer that is killed leaves at most an object that nobody names.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import zstandard

from xla_cache.errors import CacheError, CorruptError
from xla_cache.files import write_whole
from xla_cache.key import Key
from xla_cache.location import check_trusted
from xla_cache.record import Record
from xla_cache.sealed import seal, unseal
from xla_cache.turns import turn

# An unrolled program repeats its layers at distances of megabytes, which only a long window sees.
WINDOW_LOG = 27
TURN = "turn.lock"
FAST, SMALL = 3, 9
"""Compression levels: while a start waits, and for what is shipped."""


def compress(payload: bytes, *, level: int = FAST) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(level, window_log=WINDOW_LOG, enable_ldm=True)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(payload)


def checked(packed: bytes, record: Record) -> bytes:
    """`packed`, when it is what the record names.

    Raises:
        CorruptError: it is not.
    """
    found = hashlib.sha256(packed).hexdigest()
    if found != record.file:
        raise CorruptError(
            f"the executable of {record.program!r} has the digest {found} in {len(packed)} bytes, and {record.file} in "
            f"{record.packed} bytes was written: it was changed or damaged"
        )
    return packed


def decompress(packed: bytes, record: Record) -> bytes:
    """The executable in bytes that were `checked`."""
    payload = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG).decompress(
        packed, max_output_size=record.size
    )
    if len(payload) != record.size:
        raise CorruptError(
            f"the executable of {record.program!r} has {len(payload)} bytes, and {record.size} were written"
        )
    return payload


def object_name(digest: str) -> str:
    """Where an object is, relative to its store or bundle."""
    return f"objects/{digest}.zst"


class Store:
    """Programs under a directory, found by key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records = path / "records"

    @classmethod
    def open(cls, path: Path) -> Store:
        """A store that may be empty; its directories are made, for this user alone, when there is something to write.

        Raises:
            RefusedError: others can write there.
        """
        # objects are verified against records, so whoever cannot write records cannot put code here
        for place in (path, path / "records"):
            if place.exists():
                check_trusted(place)
        return cls(path)

    def turn(self) -> AbstractContextManager[None]:
        """One after the other, of the processes that ask: who comes later finds what the first has compiled."""
        return turn(self.path / TURN)

    def find(self, key: Key) -> Record | None:
        """The record of exactly this key, marked as used now.

        Raises:
            CorruptError: there is one, and it is damaged.
        """
        record = self.find_digest(key.digest)
        if record is not None:
            with suppress(OSError):  # a store that cannot be written can still be read
                os.utime(self._records / f"{key.digest}.json")
        return record

    def find_digest(self, digest: str) -> Record | None:
        """The record of the key with this digest.

        Raises:
            CorruptError: there is one, and it is damaged.
        """
        return self.read_record(self._records / f"{digest}.json")

    def records(self) -> Iterator[Record]:
        """Every record that is whole, in the order of their file names."""
        for path in self.record_paths():
            try:
                record = self.read_record(path)
            except CorruptError:
                continue
            if record is not None:
                yield record

    def packed(self, record: Record) -> bytes:
        """The compressed executable that a record names, digest checked.

        Raises:
            CorruptError: missing, truncated or changed.
        """
        path = self.path / object_name(record.file)
        try:
            packed = path.read_bytes()
        except FileNotFoundError:
            raise CorruptError(f"{path} is missing: the executable of {record.program!r}") from None
        except OSError as error:
            raise CorruptError(f"{path} cannot be read: {error}") from error
        return checked(packed, record)

    def write(self, record: Record, packed: bytes) -> None:
        """Keep a program. `packed` are the bytes that `record.file` is the digest of.

        Raises:
            CacheError: the place cannot be written: read-only, full, or no right to.
        """
        try:
            self.write_object(record, packed)
            self._records.mkdir(mode=0o700, exist_ok=True)
            write_whole(self._records / f"{record.key.digest}.json", seal(record.to_json()))
        except OSError as error:
            raise CacheError(f"{self.path} cannot be written: {error}") from error

    def forget(self, record: Record) -> None:
        """Remove an executable that does not run, and every record that names it.

        Raises:
            CacheError: the place cannot be written.
        """
        try:
            for path in self.record_paths():
                with suppress(CorruptError):
                    other = self.read_record(path)
                    if other is not None and other.file == record.file:
                        path.unlink(missing_ok=True)
            (self.path / object_name(record.file)).unlink(missing_ok=True)
        except OSError as error:
            raise CacheError(f"{self.path} cannot be written: {error}") from error

    def write_object(self, record: Record, packed: bytes) -> None:
        """Put the executable of a record in place, without the record.

        Raises:
            OSError: it cannot be written.
        """
        path = self.path / object_name(record.file)
        for directory in (self.path, path.parent):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # one that is there is written again unless it is right: this is how a damaged one is mended
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != record.file:
            write_whole(path, packed)

    def record_paths(self) -> list[Path]:
        """The files of all records, damaged ones too."""
        return sorted(self._records.glob("[0-9a-f]*.json")) if self._records.is_dir() else []

    def read_record(self, path: Path) -> Record | None:
        """The record in a file, None when it is gone.

        Raises:
            CorruptError: it is damaged.
        """
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CorruptError(f"{path} cannot be read: {error}") from error
        record = Record.from_json(unseal(data, name=str(path)), name=str(path))
        if record.key.digest != path.stem:
            raise CorruptError(f"{path} holds the record of another key, {record.key.digest}")
        return record
