"""A conversation in Anthropic's form as one of ours: messages, tools, and which of them to use."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.server.conversation.conversation import Conversation
from jaxengine.server.endpoints.messages.protocol import CountRequest, MessagesRequest
from jaxengine.server.http.fields import JsonObject

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
THINKING = ("enabled", "disabled", "adaptive")


def conversation_of(body: CountRequest) -> Conversation:
    """What a body asks.

    Raises:
        RequestError: something malformed.
        UnsupportedError: blocks or tools of a kind that is not built.
    """
    choice = body.tool_choice or {}
    output = (body.output_config if isinstance(body, MessagesRequest) else None) or {}
    effort = output.get("effort")
    if not isinstance(effort, str | None):
        raise RequestError(f"output_config.effort must be a text, got {_shown(effort)}", param="output_config")
    return Conversation(
        messages=[
            *_system(body.system),
            *(part for at, item in enumerate(body.messages) for part in _message(at, item)),
        ],
        tools=_tools(body.tools),
        tool_choice=_tool_choice(choice, tools=bool(body.tools)) if choice else None,
        parallel_tool_calls=not choice.get("disable_parallel_tool_use"),
        response_format=_response_format(output.get("format")),
        include_reasoning=(body.thinking or {}).get("type") != "disabled",
        chat_template_kwargs=_template_kwargs(body),
        reasoning_effort=effort,
    )


def thinking_budget_of(body: MessagesRequest) -> int | None:
    """The most tokens of thoughts, None where no bound is asked for.

    Raises:
        RequestError: it is no integer.
    """
    thinking = body.thinking or {}
    budget = thinking.get("budget_tokens") if thinking.get("type") == "enabled" else None
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int)):
        raise RequestError(f"thinking.budget_tokens must be an integer, got {_shown(budget)}", param="thinking")
    return budget


def _system(system: str | Sequence[Mapping[str, Any]] | None) -> list[JsonObject]:
    text = system if isinstance(system, str) else _texts("system", system or ())
    return [{"role": "system", "content": text}] if text else []


def _message(index: int, message: Mapping[str, Any]) -> list[JsonObject]:
    """One message, or several: results of tools are messages of their own, before what the user says."""
    role, content = message.get("role"), message.get("content")
    where = f"messages[{index}]"
    if role not in ("user", "assistant", "system"):
        raise RequestError(f"{where}.role must be user, assistant or system, got {_shown(role)}", param="messages")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise RequestError(f"{where}.content must be a text or a list of blocks", param="messages")
    if role == "system":
        return _system(content)
    return _assistant(where, content) if role == "assistant" else _user(where, content)


def _user(where: str, blocks: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    messages: list[JsonObject] = []
    parts: list[JsonObject] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            parts.append({"type": "text", "text": _text(where, block, "text")})
        elif kind == "tool_result":
            content = block.get("content") or ""
            result = content if isinstance(content, str) else _result(f"{where} tool_result", content)
            messages.append({"role": "tool", "tool_call_id": _text(where, block, "tool_use_id"), "content": result})
        elif kind == "image":
            parts.append(_picture(where, block))
        else:
            raise _not_built(where, kind)
    return [*messages, {"role": "user", "content": parts}] if parts else messages


def _assistant(where: str, blocks: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    message: JsonObject = {"role": "assistant"}
    texts: list[str] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(_text(where, block, "text"))
        elif kind == "thinking":
            message["reasoning_content"] = message.get("reasoning_content", "") + _text(where, block, "thinking")
        elif kind == "tool_use":
            function = {"name": _text(where, block, "name"), "arguments": json.dumps(block.get("input") or {})}
            call = {"id": _text(where, block, "id"), "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        elif kind != "redacted_thinking":  # which only its author can read
            raise _not_built(where, kind)
    if texts or "tool_calls" not in message:
        message["content"] = "".join(texts)
    return [message]


def _picture(where: str, block: Mapping[str, Any]) -> JsonObject:
    """A picture as a part of one of our messages."""
    source = block.get("source")
    given = source if isinstance(source, Mapping) else {}
    kind, url = given.get("type"), given.get("url")
    if kind == "base64" and isinstance(data := given.get("data"), str):
        url = f"data:{given.get('media_type') or 'image/png'};base64,{data}"
    if kind not in ("base64", "url") or not isinstance(url, str):
        raise RequestError(
            f"{where} has an image whose source must be {{'type': 'base64', 'media_type': ..., 'data': ...}} or "
            f"{{'type': 'url', 'url': ...}}, got {_shown(source)}",
            param="messages",
        )
    return {"type": "image_url", "image_url": {"url": url}}


def _result(where: str, blocks: Any) -> str | list[JsonObject]:
    """What a tool gave: a text, or parts where there are pictures in it."""
    if not isinstance(blocks, list) or not any(
        isinstance(block, dict) and block.get("type") == "image" for block in blocks
    ):
        return _texts(where, blocks)
    return [
        _picture(where, block)
        if isinstance(block, dict) and block.get("type") == "image"
        else {"type": "text", "text": _texts(where, [block])}
        for block in blocks
    ]


def _texts(where: str, blocks: Any) -> str:
    """The text of blocks of which there may be no others."""
    if not isinstance(blocks, (list, tuple)) or not all(isinstance(block, dict) for block in blocks):
        raise RequestError(f"{where} must be a text or a list of blocks", param=where.partition("[")[0])
    for block in blocks:
        if block.get("type") != "text":
            raise _not_built(where, block.get("type"))
    return "\n".join(_text(where, block, "text") for block in blocks)


def _tools(tools: Sequence[Mapping[str, Any]] | None) -> list[JsonObject] | None:
    if not tools:
        return None
    for tool in tools:
        if tool.get("type") not in (None, "custom"):
            raise UnsupportedError.of(
                "tools",
                f"of type {_shown(tool['type'])} are not supported: tools run in the client, with an input_schema",
            )
    return [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "parameters": tool.get("input_schema"),
                **{key: tool[key] for key in ("description", "strict") if tool.get(key) is not None},
            },
        }
        for tool in tools
    ]


def _tool_choice(choice: Mapping[str, Any], *, tools: bool) -> str | JsonObject | None:
    """The choice in the form of a chat request; without `tools` the model's own choice is to call none."""
    kind = choice.get("type")
    if kind == "auto" and not tools:
        return None
    if kind == "tool" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    if kind not in CHOICES:
        raise RequestError(
            f"tool_choice.type must be auto, any, none, or tool with a name, got {_shown(kind)}", param="tool_choice"
        )
    return CHOICES[kind]


def _template_kwargs(body: CountRequest) -> JsonObject | None:
    kind = (body.thinking or {}).get("type")
    if kind is None:
        return body.chat_template_kwargs
    if kind not in THINKING:
        raise RequestError(
            f"thinking.type must be {', '.join(THINKING[:-1])} or {THINKING[-1]}, got {_shown(kind)}", param="thinking"
        )
    return {"enable_thinking": kind != "disabled", **(body.chat_template_kwargs or {})}


def _response_format(form: Any) -> JsonObject | None:
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        raise RequestError(
            "output_config.format must be {'type': 'json_schema', 'schema': {...}}", param="output_config"
        )
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.get("schema")}}


def _not_built(where: str, kind: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{where} has a block of type {_shown(kind)}, which is not supported here", param="messages"
    )


def _text(where: str, block: Mapping[str, Any], key: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise RequestError(
            f"{where}: a block of type {_shown(block.get('type'))} needs {key}, a text, got {_shown(value)}",
            param="messages",
        )
    return value


def _shown(value: Any) -> str:
    return repr(value)[:100] if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
