"""Making a store smaller: what was not used for long goes first."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from xla_cache.errors import CacheError, CorruptError
from xla_cache.files import TEMPORARY
from xla_cache.store import Store, object_name

GRACE_S = 3600.0
"""An object that no record names, or a file written aside, may belong to a process that is about to name it."""


@dataclass(frozen=True)
class Pruned:
    """What `prune` did: programs forgotten and left, and the bytes that were freed and are left."""

    removed: int
    left: int
    freed_bytes: int
    left_bytes: int


def prune(store: Store, *, older_than_s: float | None = None, max_bytes: int | None = None) -> Pruned:
    """Forget programs that were not used for `older_than_s`, then the least recently used until `max_bytes` are kept.

    Damaged records go too. Safe beside processes that read and write: at worst they compile again.

    Raises:
        CacheError: the store cannot be written.
    """
    now = time.time()
    before = _total_bytes(store)
    kept, removed = [], 0
    try:
        for path in store.record_paths():
            try:
                record = store.read_record(path)
            except CorruptError:
                record = None
            used = _mtime(path, now)
            if record is None or (older_than_s is not None and now - used > older_than_s):
                path.unlink(missing_ok=True)
                removed += 1
            else:
                kept.append((used, path, record))
        kept.sort(key=lambda entry: entry[0], reverse=True)
        objects: dict[str, int] = {}
        for i, (_, _, record) in enumerate(kept):
            objects[record.file] = record.packed
            if max_bytes is not None and sum(objects.values()) > max_bytes:
                del objects[record.file]
                for _, path, _ in kept[i:]:
                    path.unlink(missing_ok=True)
                removed += len(kept) - i
                del kept[i:]
                break
        _sweep(store, {object_name(digest) for digest in objects}, now)
    except OSError as error:
        raise CacheError(f"{store.path} cannot be pruned: {error}") from error
    left = _total_bytes(store)
    return Pruned(removed=removed, left=len(kept), freed_bytes=before - left, left_bytes=left)


def _sweep(store: Store, named: set[str], now: float) -> None:
    for path in _files(store):
        relative = path.relative_to(store.path).as_posix()
        orphan = relative.startswith("objects/") and relative not in named
        if (orphan or path.name.startswith(TEMPORARY)) and now - _mtime(path, now) > GRACE_S:
            path.unlink(missing_ok=True)


def _files(store: Store) -> list[Path]:
    return [Path(directory) / name for directory, _, names in os.walk(store.path) for name in names]


def _total_bytes(store: Store) -> int:
    return sum(path.stat().st_size for path in _files(store) if path.exists())


def _mtime(path: Path, missing: float) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return missing
