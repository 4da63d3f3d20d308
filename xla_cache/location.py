"""Where programs are kept, and whether a place can be trusted: what is kept is code, and it is run."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from xla_cache.errors import RefusedError


def cache_home() -> Path:
    """`JAXENGINE_CACHE_DIR`, or `jaxengine` in the user's cache directory."""
    if given := os.environ.get("JAXENGINE_CACHE_DIR"):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        home = Path.home() / "Library" / "Caches"
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "jaxengine"


def default_directory() -> Path:
    """Where programs are kept unless it is said otherwise."""
    return cache_home() / "xla"


def check_trusted(path: Path) -> None:
    """Refuse a file or directory that someone else could change, itself or through a directory above it.

    Raises:
        RefusedError: with what is wrong and the command that mends it.
    """
    path = path.resolve()
    for place in (path, *path.parents):
        status = place.stat()
        if place == path and status.st_uid not in (os.getuid(), 0):
            raise RefusedError(
                f"{place} belongs to user {status.st_uid}, and this process runs as {os.getuid()}: "
                f"what it holds is code. Copy it, or `chown -R {os.getuid()} {place}`."
            )
        others = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _private_group(status))
        # with the sticky bit others may add files to a directory above, but not replace this one
        if others and not (place != path and status.st_mode & stat.S_ISVTX):
            raise RefusedError(
                f"{place} can be written by others (mode {stat.S_IMODE(status.st_mode):o}), and what "
                f"{path} holds is code. `chmod go-w {place}`, or use another place."
            )


def _private_group(status: os.stat_result) -> bool:
    # many systems give each user a group of the same number and a umask of 002
    return status.st_gid == status.st_uid
