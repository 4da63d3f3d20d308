"""`/v1/embeddings`: the request and the answer."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from jaxengine.server.http.fields import Int64
from jaxengine.server.pooling.protocol import InputRequest, PooledUsage


class EmbeddingRequest(InputRequest):
    """Embed one or more texts, or one conversation as the chat template renders it.

    `dimensions` keeps the first so many numbers, `use_activation` then scales to length one. Numbers in base64 are float32,
    little-endian unless `endianness` is big. `embedding_type`, `normalized` and `truncate` are Jina's names of `encoding_format`,
    `use_activation` and of truncation to what the model takes.
    """

    encoding_format: str | None = "float"
    dimensions: Int64 | None = None
    embed_dtype: str | None = "float32"
    endianness: Literal["native", "little", "big"] | None = "native"

    embedding_type: str | None = None
    normalized: bool | None = None
    truncate: bool | None = None


class Embedding(TypedDict):
    """One input's embedding: numbers, or their bytes in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(TypedDict):
    """The answer, with `data` in the order of the inputs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Embedding]
    usage: PooledUsage
