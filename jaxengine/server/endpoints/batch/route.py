"""`/v1/files` and `/v1/batches`: requests in files, answered in the background."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends, Query, Request, Response
from fastapi.responses import FileResponse

from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.server.endpoints.batch.protocol import (
    BatchObject,
    CreateBatch,
    DeletedFile,
    FileObject,
)
from jaxengine.server.endpoints.batch.worker import BatchWorker
from jaxengine.server.endpoints.endpoint import app_state
from jaxengine.server.http.body import json_router
from jaxengine.server.http.form import read_form
from jaxengine.server.http.pages import Page, page_of
from jaxengine.server.http.unknown import check_unknown
from jaxengine.server.service import ServiceDep

router = json_router("batches")


WorkerDep = Annotated[BatchWorker, Depends(app_state(BatchWorker))]


@router.post("/v1/files")
async def upload_file(request: Request, worker: WorkerDep, service: ServiceDep) -> FileObject:
    """Keep a file of requests: a form with `file` and `purpose`, which is `batch`."""
    body = await request.body()
    content_type = request.headers.get("content-type", "")

    def keep() -> FileObject:
        form = read_form(content_type, body)
        if "file" not in form or form["file"].filename is None:
            raise RequestError("the form must have a file", param="file")
        purpose = form["purpose"].content.decode("utf-8", "replace") if "purpose" in form else ""
        if purpose != "batch":
            raise RequestError.of("purpose", f"must be batch, got {purpose[:100]!r}")
        if any(name.partition("[")[0] == "expires_after" for name in form):
            raise UnsupportedError.of("expires_after", "is not supported: a file is kept until it is deleted")
        content = form["file"].content
        worker.store.check_room(len(content))
        return worker.store.add_file(content, filename=form["file"].filename[:200], purpose=purpose)

    return await service.in_thread(keep)


@router.get("/v1/files")
async def list_files(
    worker: WorkerDep,
    purpose: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Page[FileObject]:
    """Files, the newest first unless `order` is asc."""
    files = [file for file in worker.store.all("files") if purpose in (None, file["purpose"])]
    if order == "asc":
        files.reverse()
    return page_of(files, limit=limit, after=after, what="file")


@router.get("/v1/files/{file_id}")
async def get_file(file_id: str, worker: WorkerDep) -> FileObject:
    """What is known of a file."""
    return worker.store.file(file_id)


@router.get("/v1/files/{file_id}/content", response_class=FileResponse)
async def get_content(file_id: str, worker: WorkerDep) -> Response:
    """The content of a file."""
    worker.store.file(file_id)
    return FileResponse(worker.store.content_path(file_id), media_type="application/jsonl")


@router.delete("/v1/files/{file_id}")
async def delete_file(file_id: str, worker: WorkerDep) -> DeletedFile:
    """Forget a file that no running batch reads."""
    worker.delete_file(file_id)
    return {"id": file_id, "object": "file", "deleted": True}


@router.post("/v1/batches")
async def create_batch(body: CreateBatch, worker: WorkerDep) -> BatchObject:
    """Answer every line of a file."""
    check_unknown(body.model_extra)
    return worker.create(body)


@router.get("/v1/batches")
async def list_batches(
    worker: WorkerDep, limit: Annotated[int, Query(ge=1, le=100)] = 20, after: str | None = None
) -> Page[BatchObject]:
    """Batches, the newest first."""
    return page_of(worker.store.all("batches"), limit=limit, after=after, what="batch")


@router.get("/v1/batches/{batch_id}")
async def get_batch(batch_id: str, worker: WorkerDep) -> BatchObject:
    """A batch, and how far it is."""
    return worker.store.batch(batch_id)


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel_batch(batch_id: str, worker: WorkerDep) -> BatchObject:
    """End a batch; what was answered by then is kept."""
    return worker.cancel(batch_id)
