"""Where files and batches are kept: a directory, which outlives the server where it was named.

files/ID.json, files/ID.jsonl        a file: what is told of it, and its content
batches/ID.json                      a batch, as it is told
batches/ID.output, batches/ID.error  its answers so far, line by line; files once it has ended
"""

from __future__ import annotations

import os
import re
import tempfile
import time
import uuid
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import orjson

from jaxengine.errors import RequestError
from jaxengine.server.endpoints.batch.protocol import BatchObject, FileObject

IDS = {"files": re.compile(r"file-[0-9a-f]{32}"), "batches": re.compile(r"batch_[0-9a-f]{32}")}
"""The only names that become part of a path."""


class NotKeptError(RequestError):
    """There is no such file or batch."""

    http_status = 404
    openai_type = "NotFoundError"


class BatchStore:
    """Files and batches by id.

    Args:
        directory: where they are kept; None for one that is deleted on `close`.
        max_bytes: of the contents of all files; 0 is no limit.
    """

    def __init__(self, directory: str | None, *, max_bytes: int) -> None:
        self._directory = directory
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._max_bytes = max_bytes

    @cached_property
    def path(self) -> Path:
        """The directory, made when it is first asked for: an app that never runs leaves none behind."""
        if self._directory is None:
            self._own = tempfile.TemporaryDirectory(prefix="jaxengine-batches-")
        path = Path(self._own.name if self._own is not None else str(self._directory))
        for kind in IDS:
            (path / kind).mkdir(parents=True, exist_ok=True)
        return path

    def close(self) -> None:
        """Delete a directory of the server's own."""
        if self._own is not None:
            self._own.cleanup()

    def check_room(self, count: int) -> None:
        """Accept a file of so many bytes.

        Raises:
            RequestError: there is no room for it.
        """
        held = sum(path.stat().st_size for path in (self.path / "files").glob("*.jsonl"))
        if self._max_bytes and held + count > self._max_bytes:
            raise RequestError(
                f"the file has {count} bytes, and {max(0, self._max_bytes - held)} of {self._max_bytes} are free "
                "(--max-batch-bytes); delete other files first",
                param="file",
            )

    def add_file(self, content: bytes | Path, *, filename: str, purpose: str) -> FileObject:
        """Keep a file: bytes, or a file of ours that is moved here."""
        described: FileObject = {
            "id": f"file-{uuid.uuid4().hex}",
            "object": "file",
            "bytes": content.stat().st_size if isinstance(content, Path) else len(content),
            "created_at": int(time.time()),
            "filename": filename,
            "purpose": purpose,
            "status": "processed",
            "expires_at": None,
        }
        place = self.content_path(described["id"])
        if isinstance(content, Path):
            os.replace(content, place)
        else:
            place.write_bytes(content)
        self._write("files", described["id"], described)
        return described

    def file(self, file_id: str) -> FileObject:
        """What is told of a file.

        Raises:
            NotKeptError: it is not there.
        """
        return cast(FileObject, self._read("files", file_id))

    def content_path(self, file_id: str) -> Path:
        """Where the content of a file is.

        Raises:
            NotKeptError: that is no id of a file.
        """
        return self._place("files", file_id, "jsonl")

    def delete_file(self, file_id: str) -> None:
        """Forget a file.

        Raises:
            NotKeptError: it is not there.
        """
        self.file(file_id)
        self._place("files", file_id, "json").unlink()
        self.content_path(file_id).unlink(missing_ok=True)

    def put_batch(self, batch: BatchObject) -> None:
        """Keep a batch as it is now."""
        self._write("batches", batch["id"], batch)

    def batch(self, batch_id: str) -> BatchObject:
        """A batch.

        Raises:
            NotKeptError: it is not there.
        """
        return cast(BatchObject, self._read("batches", batch_id))

    def answers_path(self, batch_id: str, kind: str) -> Path:
        """Where the answers of a batch are until it has ended; `kind` is `output` or `error`."""
        return self._place("batches", batch_id, kind)

    def all(self, kind: str) -> list[Any]:
        """All `files` or `batches`, the newest first."""
        found = [orjson.loads(path.read_bytes()) for path in (self.path / kind).glob("*.json")]
        return sorted(found, key=lambda item: (item["created_at"], item["id"]), reverse=True)

    def _place(self, kind: str, name: str, suffix: str) -> Path:
        if IDS[kind].fullmatch(name) is None:
            raise NotKeptError(f"there is nothing with the id {name[:100]!r} in {kind}")
        return self.path / kind / f"{name}.{suffix}"

    def _read(self, kind: str, name: str) -> Any:
        try:
            return orjson.loads(self._place(kind, name, "json").read_bytes())
        except FileNotFoundError:
            raise NotKeptError(f"there is nothing with the id {name!r} in {kind}") from None

    def _write(self, kind: str, name: str, described: Any) -> None:
        """Whole or not at all: a server may be killed at any time."""
        place = self._place(kind, name, "json")
        fresh = place.with_suffix(".new")
        fresh.write_bytes(orjson.dumps(described))
        os.replace(fresh, place)
