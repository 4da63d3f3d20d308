"""`/pooling`: the request and the answer."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from jaxengine.server.http.fields import Int64, Integers
from jaxengine.server.pooling.protocol import InputRequest, PooledUsage


class PoolingRequest(InputRequest):
    """Pool one or more inputs by any task of the model: `embed`, `classify`, `token_embed`, `token_classify`, ...

    The other fields are those of `/v1/embeddings`, and `step_tag_id` and `returned_token_ids` those of process rewards.
    """

    task: str | None = None
    encoding_format: str | None = "float"
    dimensions: Int64 | None = None
    embed_dtype: str | None = "float32"
    endianness: Literal["native", "little", "big"] | None = "native"
    step_tag_id: Int64 | None = None
    returned_token_ids: Integers | None = None


class PooledEntry(TypedDict):
    """What one input was pooled to: numbers, a list of them for each token, or their bytes in base64."""

    object: Literal["pooling"]
    index: int
    data: list[float] | list[list[float]] | str


class PooledEntries(TypedDict):
    """The answer, with `data` in the order of the inputs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PooledEntry]
    usage: PooledUsage
