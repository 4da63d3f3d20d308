"""Where files of blocks lie, who may read them, and the secret that keys are made with."""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jaxengine.device.tiers.keys import KEY_BYTES
from jaxengine.errors import ConfigError

FOLDER = "kv-blocks"
SECRET_BYTES = 32
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
SECRET_WAIT_S = 5.0
BLOCK_NAME = re.compile(f"[0-9a-f]{{{2 * KEY_BYTES}}}")


@dataclass(frozen=True)
class BlockDirectory:
    """`root` and everything in it is this user's alone: pages tell what prompts said."""

    root: Path
    secret: bytes

    @classmethod
    def open(cls, directory: str | Path) -> BlockDirectory:
        """Make what is missing, and read the secret or make it. One that may only be read will do, once it has a secret.

        Raises:
            ConfigError: the path is not that of a directory, or others may write to what is in it.
            OSError: the directory or its secret can neither be read nor made.
        """
        root = Path(directory).expanduser() / FOLDER
        try:
            root.mkdir(parents=True, mode=PRIVATE_FOLDER, exist_ok=True)
        except (NotADirectoryError, FileExistsError):
            raise ConfigError(f"{directory} cannot keep pages: it is not a directory, and must be one") from None
        status = root.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ConfigError(
                f"{root} must be this user's alone (mode 0700), as pages tell what prompts said: it has mode "
                f"{status.st_mode & 0o777:04o} and belongs to user {status.st_uid}. Give another directory, or change its mode"
            )
        return cls(root, _read_or_make_secret(root / "secret"))

    @property
    def aside(self) -> Path:
        """Where files are written before they have their name."""
        return self.root / "aside"

    def path(self, key: bytes) -> str:
        """Where a block lies: 4,096 folders, so that none has more than a few hundred of some hundred thousand files.

        Raises:
            ValueError: it is no key.
        """
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, got {len(key)}")
        name = key.hex()
        return f"{self.root}/{name[:2]}/{name[2]}/{name}"

    def open_aside(self) -> tuple[int, str]:
        """A new file to write to, and its path."""
        path = f"{self.aside}/{os.getpid()}-{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(path, flags, PRIVATE_FILE), path
        except FileNotFoundError:
            self.aside.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            return os.open(path, flags, PRIVATE_FILE), path

    def keep(self, aside: str, path: str) -> None:
        """Give a file that is written its name."""
        try:
            os.replace(aside, path)
        except FileNotFoundError:
            leaf = Path(path).parent
            for folder in (leaf.parent, leaf):  # `parents=True` would make the upper one for everybody
                folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            os.replace(aside, path)

    def files(self) -> Iterator[os.DirEntry[str]]:
        """Every file that has a block's name. Folders that go away or cannot be read are passed over."""
        for folder in _entries(self.root):
            if len(folder.name) == 2:
                for leaf in _entries(folder.path):
                    yield from (file for file in _entries(leaf.path) if BLOCK_NAME.fullmatch(file.name))

    def clear_aside(self, older_than_s: float) -> int:
        """Remove files that a writer has left behind, which is one that has not written for so long; how many.

        Were it still alive, it would find its file gone and have kept nothing.
        """
        count, limit = 0, time.time() - older_than_s
        for file in _entries(self.aside):
            try:
                if file.stat(follow_symlinks=False).st_mtime < limit:
                    os.unlink(file.path)
                    count += 1
            except OSError:
                continue
        return count


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _read_or_make_secret(path: Path) -> bytes:
    """The secret in a file, which the first of many engines that start together makes.

    It is written aside and linked, which fails where it is there already. A file system without links gets it written in place,
    and the others wait until it is all there.
    """
    if not path.exists():
        aside = path.with_name(f"secret-{os.getpid()}-{secrets.token_hex(8)}")
        _write_new(aside)
        try:
            os.link(aside, path)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise
            with suppress(FileExistsError):
                _write_new(path)
        finally:
            aside.unlink(missing_ok=True)
    end = time.monotonic() + SECRET_WAIT_S
    while len(secret := path.read_bytes()) < SECRET_BYTES:
        if time.monotonic() > end:
            raise OSError(errno.EIO, f"the secret has {len(secret)} bytes and not {SECRET_BYTES}; remove it", str(path))
        time.sleep(0.01)
    return secret


def _write_new(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(SECRET_BYTES))
        file.flush()
        os.fsync(file.fileno())
