"""What a body of `/v1/responses` asks, as a conversation: for the response itself, and for the count of its input."""

from __future__ import annotations

from collections.abc import Sequence

from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.server.conversation.conversation import Conversation
from jaxengine.server.endpoints.responses.input import (
    LOGPROBS,
    to_messages,
    to_response_format,
    to_tool_choice,
    to_tools,
)
from jaxengine.server.endpoints.responses.protocol import InputTokensRequest, ResponsesRequest
from jaxengine.server.endpoints.responses.store import ResponseStore
from jaxengine.server.http.fields import JsonObject
from jaxengine.server.http.unknown import note_unknown

NAMES = {
    "messages": "input",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
}
"""Fields of a chat request, by which errors call them, and their names here."""
IGNORED_INCLUDES = frozenset({"reasoning.encrypted_content"})
"""Clients send it as a matter of course; reasoning comes back in the clear anyway."""


def check_built(body: InputTokensRequest) -> None:
    """Refuse what OpenAI offers and this server does not.

    Raises:
        UnsupportedError: with the field's name.
        RequestError: a response in the background that is not to be kept.
    """
    if body.truncation not in (None, "disabled"):
        raise UnsupportedError(
            "truncation is not supported: only 'disabled' is built; shorten the input", param="truncation"
        )
    # Clients of reasoning models ask for summaries as a matter of course, and the answer says that it has none.
    note_unknown("text", body.text)
    note_unknown("reasoning", body.reasoning)
    if not isinstance(body, ResponsesRequest):
        return
    if body.background and body.store is False:
        raise RequestError.of("background", "can only be used when `store` is true")
    if body.background and body.stream:
        raise UnsupportedError(
            "background is not supported: one that is streamed runs while its client waits; look it up",
            param="background",
        )
    for item in body.include or ():
        if item not in (LOGPROBS, *IGNORED_INCLUDES):
            raise UnsupportedError.of("include", f"{item[:100]!r} is not supported; {LOGPROBS!r} is")


def all_messages(body: InputTokensRequest, store: ResponseStore) -> list[JsonObject]:
    """The turns before and the input.

    Raises:
        ResponseNotFoundError: the response before is not kept.
        RequestError: an item that is malformed or of a kind that is not built.
    """
    before = store.messages(body.previous_response_id) if body.previous_response_id else []
    return before + to_messages([] if body.input is None else body.input)


def conversation_of(body: InputTokensRequest, messages: Sequence[JsonObject]) -> Conversation:
    """What a body asks of these messages, behind its instructions.

    Raises:
        UnsupportedError: tools that the server would have to run itself.
    """
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    return Conversation(
        messages=[*system, *messages],
        tools=to_tools(body.tools),
        tool_choice=to_tool_choice(body.tool_choice, tools=bool(body.tools)),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=to_response_format(body.text.format if body.text else None),
        include_reasoning=body.include_reasoning,
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        verbosity=body.text.verbosity if body.text else None,
    )
