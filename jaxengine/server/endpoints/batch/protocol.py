"""`/v1/files` and `/v1/batches`: what is sent and what is told."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from jaxengine.server.http.fields import JsonObject

Status = Literal["in_progress", "finalizing", "completed", "failed", "cancelling", "cancelled"]


class CreateBatch(BaseModel):
    """Answer every line of a file, all of them requests for one endpoint, as soon as may be whatever `completion_window` says."""

    model_config = ConfigDict(extra="allow")

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: JsonObject | None = None


class FileObject(TypedDict):
    """A file that is kept."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"]
    expires_at: None


class DeletedFile(TypedDict):
    """A file is no longer kept."""

    id: str
    object: Literal["file"]
    deleted: bool


class RequestCounts(TypedDict):
    """Lines of a batch."""

    total: int
    completed: int
    failed: int


class BatchObject(TypedDict):
    """A batch, and how far it is."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: JsonObject | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    expires_at: None
    expired_at: None
    request_counts: RequestCounts
    metadata: JsonObject | None
