"""`/v1/chat/completions`: the request, the answer, and the chunks of a streamed one."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from jaxengine.server.generation.protocol import (
    FinishReason,
    GenerationRequest,
    PromptLogprobs,
    StopReason,
    TokenLogprob,
    Usage,
)
from jaxengine.server.generation.versions import TokensOfVersion
from jaxengine.server.http.fields import Int64, JsonObject, JsonObjects


class ChatCompletionRequest(GenerationRequest):
    """Answer a conversation.

    Messages are OpenAI's: a role, and content that is text or a list of parts, of text and of what the model takes beside it.
    `max_completion_tokens` is the newer name of `max_tokens`; without either the answer may take what is left of the context.
    `echo` begins the answer with the message that it goes on with. `reasoning_effort` and `verbosity` are passed to the
    chat template.
    """

    messages: JsonObjects = Field(description="the conversation, oldest message first")
    max_tokens: Int64 | None = None
    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = False
    top_logprobs: Int64 | None = None
    echo: bool | None = False
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    add_special_tokens: bool | None = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    documents: JsonObjects | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    include_reasoning: bool | None = True
    tools: JsonObjects | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = True


class ChatLogprobs(TypedDict):
    """One entry per generated token."""

    content: list[TokenLogprob]
    refusal: None


class FunctionCall(TypedDict):
    """A function's name, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call that the model makes."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ToolCallDelta(ToolCall):
    """The `index`-th call, in a stream."""

    index: int


class ChatMessage(TypedDict):
    """The model's answer."""

    role: str
    content: str | None
    refusal: str | None
    annotations: None
    audio: None
    function_call: None
    reasoning: str | None
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    """One of the `n` answers, and which weights made its tokens."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: StopReason
    token_ids: list[int] | None
    weight_versions: list[TokensOfVersion]


class ChatCompletion(TypedDict):
    """A whole answer. What was not asked for, or is not built, is null, as vLLM's clients expect."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: None
    system_fingerprint: str
    usage: Usage
    prompt_logprobs: PromptLogprobs | None
    prompt_token_ids: list[int] | None
    kv_transfer_params: dict[str, Any] | None


class Delta(TypedDict):
    """What a message gained."""

    role: NotRequired[str]
    content: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]


class ChunkChoice(TypedDict):
    """What one of the answers gained. The first has the role, the last an empty delta and the finish reason."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: NotRequired[StopReason]
    token_ids: NotRequired[list[int]]
    weight_versions: NotRequired[list[TokensOfVersion]]


class ChatChunk(TypedDict):
    """One event of a stream; the very last has no choices and the usage, where it was asked for."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str
    usage: NotRequired[Usage]
    prompt_token_ids: NotRequired[list[int]]
