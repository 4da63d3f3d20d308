"""`/v1/completions`: the request, the answer, and the chunks of a streamed one."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from jaxengine.server.generation.protocol import FinishReason, GenerationRequest, PromptLogprobs, StopReason, Usage
from jaxengine.server.generation.versions import TokensOfVersion
from jaxengine.server.http.fields import Int64, IntegerLists, Integers, Texts


class CompletionRequest(GenerationRequest):
    """Continue one or more prompts.

    `prompt` is text, token ids, or a list of either; choice `i * n + j` is the j-th sequence of the i-th prompt.
    """

    prompt: str | Integers | Texts | IntegerLists = Field(description="text, token ids, or a list of either")
    max_tokens: Int64 | None = 16
    logprobs: Int64 | None = None
    echo: bool | None = False
    add_special_tokens: bool | None = True


class CompletionLogprobs(TypedDict):
    """Per token: its text, where that begins, its log probability, and the most likely tokens' by text."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    """One sequence, or in a chunk what it gained. Its last chunk tells which weights made its tokens."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: StopReason
    token_ids: NotRequired[list[int] | None]
    prompt_token_ids: NotRequired[list[int] | None]
    prompt_logprobs: NotRequired[PromptLogprobs | None]
    weight_versions: NotRequired[list[TokensOfVersion]]


class Completion(TypedDict):
    """An answer, or a chunk of one (`usage` is then on the last, where it was asked for). In a whole answer what was not asked
    for, or is not built, is null, as vLLM's clients expect."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: NotRequired[Usage | None]
    service_tier: NotRequired[None]
    kv_transfer_params: NotRequired[dict[str, Any] | None]
