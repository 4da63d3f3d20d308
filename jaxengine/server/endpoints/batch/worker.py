"""Runs batches, one after the other, beside whatever else the server does."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import IO, TYPE_CHECKING

from jaxengine.errors import EngineDeadError, RequestError
from jaxengine.server.endpoints.batch.lines import ENDPOINTS, answers_in_order
from jaxengine.server.endpoints.batch.protocol import BatchObject, CreateBatch
from jaxengine.server.endpoints.batch.store import BatchStore
from jaxengine.server.http.pieces import json_texts

if TYPE_CHECKING:
    from jaxengine.server.service import Service

logger = logging.getLogger("jaxengine")

RUNNING = ("in_progress", "finalizing", "cancelling")


class BatchWorker:
    """Takes batches in their order. Those that had not ended when a server did go on behind their last answer.

    Attributes:
        store: where files and batches are kept.
    """

    def __init__(self, store: BatchStore, service: Service) -> None:
        self.store = store
        self._service = service
        self._waiting: asyncio.Queue[str] = asyncio.Queue()
        self._cancelled: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, service: Service) -> BatchWorker:
        """The worker of an app."""
        options = service.options.batches
        return cls(BatchStore(options.batch_dir, max_bytes=options.max_batch_bytes), service)

    def start(self) -> None:
        """Begin, on the running event loop."""
        for batch in reversed(self.store.all("batches")):
            if batch["status"] in RUNNING:
                self._waiting.put_nowait(batch["id"])
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop; a batch under way goes on with the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.store.close()

    def create(self, asked: CreateBatch) -> BatchObject:
        """A batch, which runs when those before it have ended.

        Raises:
            RequestError: its endpoint or its file are not there, or the file is empty.
        """
        if asked.endpoint not in ENDPOINTS:
            raise RequestError.of("endpoint", f"must be one of {', '.join(ENDPOINTS)}, got {asked.endpoint[:100]!r}")
        self.store.file(asked.input_file_id)
        with self.store.content_path(asked.input_file_id).open("rb") as lines:
            total = sum(1 for line in lines if line.strip())
        if not total:
            raise RequestError("the input file has no lines", param="input_file_id")
        now = int(time.time())
        batch: BatchObject = {
            "id": f"batch_{uuid.uuid4().hex}",
            "object": "batch",
            "endpoint": asked.endpoint,
            "errors": None,
            "input_file_id": asked.input_file_id,
            "completion_window": asked.completion_window,
            "status": "in_progress",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": now,
            "in_progress_at": now,
            "finalizing_at": None,
            "completed_at": None,
            "failed_at": None,
            "cancelling_at": None,
            "cancelled_at": None,
            "expires_at": None,
            "expired_at": None,
            "request_counts": {"total": total, "completed": 0, "failed": 0},
            "metadata": asked.metadata,
        }
        self.store.put_batch(batch)
        self._waiting.put_nowait(batch["id"])
        return batch

    def cancel(self, batch_id: str) -> BatchObject:
        """End a batch before its next line; what was answered is kept.

        Raises:
            RequestError: there is no such batch, or it has ended.
        """
        batch = self.store.batch(batch_id)
        if batch["status"] not in RUNNING:
            raise RequestError(f"the batch is {batch['status']} already", param="batch_id")
        self._cancelled.add(batch_id)
        batch["status"], batch["cancelling_at"] = "cancelling", int(time.time())
        self.store.put_batch(batch)
        return batch

    def delete_file(self, file_id: str) -> None:
        """Forget a file.

        Raises:
            RequestError: there is no such file, or a batch is reading it.
        """
        for batch in self.store.all("batches"):
            if batch["status"] in RUNNING and batch["input_file_id"] == file_id:
                raise RequestError(f"batch {batch['id']} is reading the file; cancel it first", param="file_id")
        self.store.delete_file(file_id)

    async def _run(self) -> None:
        while True:
            batch = self.store.batch(await self._waiting.get())
            if batch["status"] == "cancelling":
                self._cancelled.add(batch["id"])
            try:
                await self._answer(batch)
            except EngineDeadError:
                return  # the next start goes on
            except Exception:
                logger.exception("batch %s has failed", batch["id"])
                batch["errors"] = {
                    "object": "list",
                    "data": [{"code": "failed", "message": "the server's log says why", "line": None, "param": None}],
                }
                self._end(batch, "failed")

    async def _answer(self, batch: BatchObject) -> None:
        counts, batch_id = batch["request_counts"], batch["id"]
        paths = {kind: self.store.answers_path(batch_id, kind) for kind in ("output", "error")}
        counts["completed"], counts["failed"] = (_whole_lines(paths[kind]) for kind in ("output", "error"))
        done = counts["completed"] + counts["failed"]
        source = self.store.content_path(batch["input_file_id"])
        with (
            source.open(encoding="utf-8", errors="replace") as lines,
            paths["output"].open("ab") as output,
            paths["error"].open("ab") as error,
        ):
            rest = (line for number, line in enumerate(filter(str.strip, lines)) if number >= done)
            most = self._service.engine.facts.max_num_seqs
            answers = answers_in_order(rest, self._service, most=most, endpoint=batch["endpoint"])
            async with aclosing(answers):
                async for answer in answers:
                    if batch_id in self._cancelled:
                        break
                    wrong = answer["error"] is not None
                    _append(error if wrong else output, json_texts(answer))
                    counts["failed" if wrong else "completed"] += 1
                    self.store.put_batch(batch)
        self._end(batch, "cancelled" if batch_id in self._cancelled else "completed")

    def _end(self, batch: BatchObject, status: str) -> None:
        """The answers become files."""
        for kind in ("output", "error"):
            path = self.store.answers_path(batch["id"], kind)
            if path.is_file() and path.stat().st_size:
                kept = self.store.add_file(path, filename=f"{batch['id']}_{kind}.jsonl", purpose=f"batch_{kind}")
                batch[f"{kind}_file_id"] = kept["id"]  # type: ignore[literal-required]
            path.unlink(missing_ok=True)
        batch["status"] = status  # type: ignore[typeddict-item]
        batch[f"{status}_at"] = int(time.time())  # type: ignore[literal-required]
        batch["cancelling_at"] = self.store.batch(batch["id"])["cancelling_at"]
        self._cancelled.discard(batch["id"])
        self.store.put_batch(batch)


def _whole_lines(path: Path) -> int:
    """How many lines a file has that was written line by line. What a killed server left of a line is cut off."""
    if not path.is_file():
        return 0
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.truncate(path, end)
    return content.count(b"\n")


def _append(file: IO[bytes], line: Sequence[bytes]) -> None:
    file.writelines((*line, b"\n"))
    file.flush()
