"""Fields that the bodies of several pooling endpoints have, and usage."""

from __future__ import annotations

from typing import Any, NotRequired

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from jaxengine.server.generation.protocol import PromptTokensDetails
from jaxengine.server.http.fields import Int64, IntegerLists, Integers, JsonObjects, Seconds, Texts


class PooledRequest(BaseModel):
    """Fields of every request that pools.

    `use_activation` scales embeddings to length one and puts scores through the model's sigmoid or softmax; `normalize`,
    `activation` and `softmax` are older names of it. `truncate_prompt_tokens` keeps the first so many tokens of each input.
    """

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    timeout: Seconds | None = None
    resume: bool | None = True
    use_activation: bool | None = None
    normalize: bool | None = None
    activation: bool | None = None
    softmax: bool | None = None
    truncate_prompt_tokens: Int64 | None = None
    priority: Int64 | None = 0
    cache_salt: str | None = None
    request_id: str | None = None


class InputRequest(PooledRequest):
    """One or more inputs, or one conversation as the chat template renders it.

    `input` is text, token ids, or a list of either. `add_special_tokens` is true for texts and false for messages, whose template
    has written them.
    """

    input: str | Integers | Texts | IntegerLists | None = Field(
        default=None, description="text, token ids, or a list of either"
    )
    add_special_tokens: bool | None = None

    messages: JsonObjects | None = None
    add_generation_prompt: bool | None = False
    continue_final_message: bool | None = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class PairRequest(PooledRequest):
    """Texts that are compared in pairs.

    A reranker with a template may be given an `instruction` for it, and `chat_template_kwargs`.
    """

    instruction: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class PooledUsage(TypedDict):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[PromptTokensDetails]
