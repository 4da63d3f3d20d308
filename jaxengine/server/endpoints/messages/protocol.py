"""`/v1/messages`, Anthropic's form of a chat: request and answer. The events of a streamed one are in `messages.blocks`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from jaxengine.server.generation.protocol import SamplingRequest
from jaxengine.server.http.fields import Int64, JsonObject, JsonObjects, Texts


class CountRequest(BaseModel):
    """What is asked, and the tools to do it with. Content is text or a list of blocks: text, thinking, tool_use, tool_result."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    messages: JsonObjects
    system: str | JsonObjects | None = None
    tools: JsonObjects | None = None
    tool_choice: JsonObject | None = None
    thinking: JsonObject | None = None
    chat_template_kwargs: JsonObject | None = None


class MessagesRequest(SamplingRequest, CountRequest):
    """Answer a conversation. Fields of vLLM's that Anthropic's API has no name for work here too.

    `thinking` of type `disabled` or `enabled` is passed to the chat template as `enable_thinking`, and disabled thoughts are not
    told; `budget_tokens` is chat's `thinking_token_budget`. `output_config` holds `effort`, for the chat template, and
    `format`, a JSON schema.
    """

    max_tokens: Int64
    stop_sequences: Texts | None = None
    output_config: JsonObject | None = None
    metadata: JsonObject | None = None
    service_tier: str | None = None


class MessageUsage(TypedDict):
    """Tokens read and written; those that came from the prefix cache stand apart from the other input."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int


class Message(TypedDict):
    """The answer; `content` are its blocks in order."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[JsonObject]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(TypedDict):
    """How many tokens a conversation is to the model."""

    input_tokens: int
