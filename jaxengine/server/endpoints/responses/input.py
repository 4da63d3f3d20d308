"""The input of a response as chat messages, its tools and text format as those of a chat request."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.server.endpoints.responses.protocol import Item
from jaxengine.server.http.fields import JsonObject

PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""What ids of items begin with."""

LOGPROBS = "message.output_text.logprobs"


def to_messages(given: str | Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    """Input items as chat messages: reasoning and calls join the assistant's message that they belong to.

    Raises:
        RequestError: an item that is malformed.
        UnsupportedError: an item of a kind that is not built.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[JsonObject] = []
    for index, item in enumerate(given):
        _add_item(messages, index, item)
    return messages


def to_items(given: str | Sequence[Mapping[str, Any]]) -> list[Item]:
    """Input as the items that it is listed as, each with an id."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return [_listed(item) for item in items]


def _listed(item: Mapping[str, Any]) -> Item:
    kind = item.get("type", "message")
    listed = {"id": f"{PREFIXES.get(kind, 'item')}_{uuid.uuid4().hex}", "type": kind, "status": "completed", **item}
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        listed["content"] = [
            {"type": part, "text": item["content"], **({"annotations": []} if part == "output_text" else {})}
        ]
    return listed


def to_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[JsonObject] | None:
    """Function tools in the form of a chat request.

    Raises:
        UnsupportedError: a tool that the server would have to run itself.
    """
    if not tools:
        return None
    for tool in tools:
        if tool.get("type") != "function":
            raise UnsupportedError.of(
                "tools", f"of type {_shown(tool.get('type'))} are not supported; only 'function' is"
            )
    keys = ("name", "description", "parameters", "strict")
    return [{"type": "function", "function": {key: tool[key] for key in keys if key in tool}} for tool in tools]


def to_tool_choice(choice: str | Mapping[str, Any] | None, *, tools: bool) -> str | JsonObject | None:
    """`tool_choice` in the form of a chat request; without `tools` the model's own choice is to call none."""
    if choice == "auto" and not tools:
        return None
    if choice is None or isinstance(choice, str):
        return choice
    if choice.get("type") == "function" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    raise UnsupportedError(
        "tool_choice must be 'none', 'auto', 'required' or {'type': 'function', 'name': ...}, got "
        + _shown(choice.get("type")),
        param="tool_choice",
    )


def to_response_format(text: Mapping[str, Any] | None) -> JsonObject | None:
    """`text.format` as a chat request's `response_format`."""
    kind = (text or {}).get("type", "text")
    if text is None or kind == "text":
        return None
    if kind == "json_schema":
        keys = ("name", "description", "schema", "strict")
        return {"type": "json_schema", "json_schema": {key: text[key] for key in keys if key in text}}
    return dict(text)


def _add_item(messages: list[JsonObject], index: int, item: Mapping[str, Any]) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = _text(item, "role", index)
        if role == "assistant" and messages and "content" not in messages[-1] and messages[-1]["role"] == role:
            messages[-1]["content"] = item.get("content")
        else:
            # Chat templates know of no developer; what one says is what the system says.
            messages.append({"role": "system" if role == "developer" else role, "content": item.get("content")})
    elif kind == "function_call":
        function = {"name": _text(item, "name", index), "arguments": _text(item, "arguments", index)}
        call = {"id": _text(item, "call_id", index), "type": "function", "function": function}
        _assistant(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = item.get("output")
        messages.append({"role": "tool", "tool_call_id": _text(item, "call_id", index), "content": output})
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or ()
        texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
        if texts:
            messages.append({"role": "assistant", "reasoning_content": "\n".join(texts)})
    else:
        raise UnsupportedError.of("input", f"{index} is of type {_shown(kind)}, which is not supported")


def _assistant(messages: list[JsonObject]) -> JsonObject:
    """The assistant's message that is under way, a new one if none is."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    return messages[-1]


def _text(item: Mapping[str, Any], key: str, index: int) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise RequestError.of("input", f"{index} needs {key}, a text, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    return repr(value)[:100]
