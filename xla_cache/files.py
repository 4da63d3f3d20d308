"""Files written so that a reader never sees half of one, whatever happens to the writer."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

TEMPORARY = ".tmp-"


def write_whole(path: Path, data: bytes) -> None:
    """Write aside, sync, rename. A file of that name that is there already is replaced."""
    aside = path.with_name(f"{TEMPORARY}{path.name[:32]}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
