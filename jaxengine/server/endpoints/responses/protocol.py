"""`/v1/responses`: the request, the answer, and its items. The events of a streamed one are in `responses.items`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from jaxengine.server.generation.protocol import SamplingRequest
from jaxengine.server.http.fields import Int64, JsonObject, JsonObjects, Texts

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

Item = dict[str, Any]
"""One item of a conversation, in OpenAI's form."""


class TextConfig(BaseModel):
    """`format` is `{"type": "text" | "json_object" | "json_schema", ...}`; `verbosity` is passed to the chat template."""

    model_config = ConfigDict(extra="allow")

    format: JsonObject | None = None
    verbosity: str | None = None


class ReasoningConfig(BaseModel):
    """How hard to think; passed to the chat template."""

    model_config = ConfigDict(extra="allow")

    effort: str | None = None


class InputTokensRequest(BaseModel):
    """What a response would be made from: `instructions`, then the turns before (`previous_response_id`), then `input`."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    input: str | JsonObjects | None = Field(
        default=None, description="text, or a list of messages, function calls and their outputs"
    )
    instructions: str | None = None
    previous_response_id: str | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: JsonObjects | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = True
    truncation: str | None = "disabled"
    include_reasoning: bool | None = True
    chat_template_kwargs: JsonObject | None = None


class ResponsesRequest(SamplingRequest, InputTokensRequest):
    """One turn of a conversation: `instructions`, then the turns before (`previous_response_id`), then `input`."""

    input: str | JsonObjects = Field(description="text, or a list of messages, function calls and their outputs")
    store: bool | None = True
    stream_options: JsonObject | None = None

    max_output_tokens: Int64 | None = None
    top_logprobs: Int64 | None = None
    include: Texts | None = None

    background: bool | None = False
    max_tool_calls: Int64 | None = None
    metadata: JsonObject | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None


class InputTokens(TypedDict):
    """How many tokens a response would read."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class InputTokensDetails(TypedDict):
    """How many input tokens came from the prefix cache, and how many were paid for to be kept in it (none)."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    """How many output tokens were reasoning."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Tokens read and written."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(TypedDict):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(TypedDict):
    """Why a response ends early."""

    reason: Literal["max_output_tokens"]


class ResponseObject(TypedDict):
    """A response; `output` are its items (messages, reasoning, function calls) in order."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    model: str
    status: Status
    output: list[JsonObject]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    usage: ResponseUsage | None
    instructions: str | None
    previous_response_id: str | None
    store: bool
    background: bool
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: JsonObject
    parallel_tool_calls: bool
    temperature: float
    top_p: float
    top_logprobs: int
    reasoning: JsonObject
    text: JsonObject
    tool_choice: str | JsonObject
    tools: list[JsonObject]
    truncation: str
    service_tier: str | None
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


class DeletedResponse(TypedDict):
    """A response is no longer kept."""

    id: str
    object: Literal["response"]
    deleted: bool
