"""`/v2/embed`: Cohere's request for embeddings, and the answer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from jaxengine.server.http.fields import Int64, JsonObjects, Seconds, Texts


class EmbedRequest(BaseModel):
    """Embed texts, or inputs whose `content` is text.

    `input_type` chooses one of the prompts that the model's files have, such as `query` for `search_query`. `truncate` cuts what
    is too long at its end (`END`), or refuses it (`NONE`).
    """

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    texts: Texts | None = None
    inputs: JsonObjects | None = None
    images: Texts | None = None
    input_type: str | None = None
    embedding_types: list[str] | None = None
    output_dimension: Int64 | None = None
    truncate: str | None = "END"
    max_tokens: Int64 | None = None
    priority: Int64 | None = 0
    user: str | None = None
    safety_identifier: str | None = None
    timeout: Seconds | None = None
    resume: bool | None = True


class EmbedAnswer(TypedDict):
    """The embeddings by type, in the order of the texts."""

    id: str
    response_type: Literal["embeddings_by_type"]
    embeddings: dict[str, Any]
    texts: list[str]
    meta: dict[str, Any]
