"""`/rerank`: the request and the answer, in the forms of Jina and Cohere."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from jaxengine.server.http.fields import Int64, JsonObject
from jaxengine.server.pooling.protocol import PairRequest


class RerankRequest(PairRequest):
    """Order documents by how well they fit a query.

    A document is text, or an object with `text` or with parts of `content`. `top_n` keeps the best so many, 0 all of them.
    `max_tokens_per_doc` (Cohere) keeps the first so many tokens of each document, `return_documents` repeats them in the answer.
    """

    query: str | JsonObject
    documents: Annotated[list[str | JsonObject], Field(fail_fast=True)]
    top_n: Int64 | None = 0
    return_documents: bool | None = True
    max_tokens_per_doc: Int64 | None = None


class RerankDocument(TypedDict):
    """A document as it was given."""

    text: str


class RerankResult(TypedDict):
    """A document's place in the request, and how well it fits."""

    index: int
    relevance_score: float
    document: NotRequired[RerankDocument]


class RerankUsage(TypedDict):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class Reranked(TypedDict):
    """The answer, with the best result first; `meta` is Cohere's."""

    id: str
    model: str
    usage: RerankUsage
    results: list[RerankResult]
    meta: NotRequired[dict[str, Any]]
