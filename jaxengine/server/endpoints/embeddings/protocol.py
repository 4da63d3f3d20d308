"""`/v1/embeddings`: the request and the answer."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from jaxengine.server.generation.protocol import PromptTokensDetails
from jaxengine.server.http.fields import Int64, IntegerLists, Integers, JsonObjects, Texts


class EmbeddingRequest(BaseModel):
    """Embed one or more texts, or one conversation as the chat template renders it.

    `input` is text, token ids, or a list of either. `dimensions` keeps the first so many numbers, `normalize` (or its other name
    `use_activation`) then scales to length one, `truncate_prompt_tokens` keeps the first so many tokens of each input. Numbers in
    base64 are float32, little-endian unless `endianness` is big. `add_special_tokens` is true for texts and false for messages,
    whose template has written them.
    """

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    input: str | Integers | Texts | IntegerLists | None = Field(
        default=None, description="text, token ids, or a list of either"
    )
    encoding_format: str | None = "float"
    dimensions: Int64 | None = None
    user: str | None = None

    normalize: bool | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: Int64 | None = None
    add_special_tokens: bool | None = None
    embed_dtype: str | None = "float32"
    endianness: Literal["native", "little", "big"] | None = "native"
    priority: Int64 | None = 0
    cache_salt: str | None = None
    request_id: str | None = None

    messages: JsonObjects | None = None
    add_generation_prompt: bool | None = False
    continue_final_message: bool | None = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Embedding(TypedDict):
    """One input's embedding: numbers, or their bytes in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[PromptTokensDetails]


class Embeddings(TypedDict):
    """The answer, with `data` in the order of the inputs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage
