"""A conversation as it is asked, whatever API it came by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pydantic import BaseModel

from jaxengine.errors import RequestError
from jaxengine.server.http.fields import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages, the tools for the next one, and how a template shows them. The forms of all are those of OpenAI's chats.

    `chat_template_kwargs`, `reasoning_effort`, `verbosity` and `documents` are the template's variables,
    `mm_processor_kwargs` are for what messages show. `begin` is text that the answer is told with, before what is generated.
    """

    messages: Sequence[JsonObject]
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = True
    response_format: JsonObject | None = None
    include_reasoning: bool | None = True
    begin: str = ""

    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    documents: Sequence[JsonObject] | None = None
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    add_special_tokens: bool | None = False
    mm_processor_kwargs: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, body: BaseModel, **others: Any) -> Conversation:
        """What a body with fields of the same names asks; `others` are those that it has not, or under another name."""
        own = {field.name: getattr(body, field.name) for field in fields(cls) if field.name in type(body).model_fields}
        return cls(**{**own, **others})


TEMPLATE_FIELDS = ("tools", "chat_template", "chat_template_kwargs", "continue_final_message")
"""Of bodies that may have messages or a text."""


def refuse_template_fields(body: BaseModel, *, beside: str) -> None:
    """See that a body with a text, its field `beside`, asks nothing of the template of messages.

    Raises:
        RequestError: it does.
    """
    if asked := next((name for name in TEMPLATE_FIELDS if getattr(body, name, None)), None):
        raise RequestError.of(asked, f"is for messages, which a chat template renders; with {beside} leave it out")
