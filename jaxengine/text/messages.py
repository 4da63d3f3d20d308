"""Messages as a chat template sees them: plain data, and text content in the form that the template reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jinja2.nodes as nodes

from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.text.placeholders import NO_PLACEHOLDERS, Placeholders

TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
ABSENT_FIELDS = {"function_call": "tool_calls are", "audio": "answers are text"}
"""Fields of OpenAI's messages that no template reads, and what there is instead."""
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names under which a message carries reasoning; templates read the first."""


def plain(value: Any) -> Any:
    """`value` rebuilt from JSON types, so that a template never holds an object with methods of its own."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return f"<{type(value).__name__}>"


def flatten(
    messages: Sequence[Mapping[str, Any]], *, as_parts: bool, placeholders: Placeholders = NO_PLACEHOLDERS
) -> list[dict[str, Any]]:
    """Copies of the messages with their content as a list of parts or as one string, and without keys that are None.

    Parts `{"type": "image"}` and the like stand for items, of modalities that have placeholders.

    Raises:
        RequestError: no messages, or one that is malformed.
        UnsupportedError: a content part that is neither text nor such an item.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise RequestError.of(
            "messages", f"must be a non-empty list of {{'role': ..., 'content': ...}}, got {messages!r}"
        )
    return [_message(index, message, as_parts, placeholders) for index, message in enumerate(messages)]


def wants_parts(template: nodes.Template) -> bool:
    """Whether a template loops over a message's content, and so reads a list of parts and not only a string.

    The content may have a name of its own, one that is given to nothing else, or be what a macro is called with.
    """
    assigned: dict[str, list[bool]] = {}
    for assign in template.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name):
            assigned.setdefault(assign.target.name, []).append(_is_content(assign.node))
    names = {name for name, contents in assigned.items() if all(contents)}
    macros = {macro.name: macro for macro in template.find_all(nodes.Macro)}
    return _loops(template, names) or any(
        _loops(macros[call.node.name], _content_parameters(macros[call.node.name], call, names))
        for call in template.find_all(nodes.Call)
        if isinstance(call.node, nodes.Name) and call.node.name in macros
    )


def _loops(node: nodes.Node, names: Collection[str]) -> bool:
    """Whether there is a loop over content, or over what has one of the names."""
    return any(_reads_content(loop.iter, names) for loop in node.find_all(nodes.For))


def _content_parameters(macro: nodes.Macro, call: nodes.Call, names: Collection[str]) -> set[str]:
    """The parameters of a macro that a call gives content to."""
    given = [*zip((parameter.name for parameter in macro.args), call.args, strict=False)]
    given += [(keyword.key, keyword.value) for keyword in call.kwargs]
    return {name for name, value in given if _reads_content(value, names)}


def _reads_content(node: nodes.Node, names: Collection[str]) -> bool:
    return _is_content(node) or (isinstance(node, nodes.Name) and node.name in names)


def _is_content(node: nodes.Node) -> bool:
    """`message.content`, `message['content']`, or one of them behind filters."""
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"


def _message(index: int, message: Any, as_parts: bool, placeholders: Placeholders) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"message {index} must be a dict with a role, got {message!r}", param="messages")
    copy = {key: plain(value) for key, value in message.items() if value is not None}
    for name, instead in ABSENT_FIELDS.items():
        if copy.get(name):
            raise UnsupportedError(f"message {index} has {name}, which is not supported: {instead}", param="messages")
    if isinstance(refusal := copy.get("refusal"), str):  # what a model said instead of an answer
        copy.setdefault("content", refusal)
    reasoning = next((copy[name] for name in REASONING_FIELDS if name in copy), None)
    if reasoning is not None:
        copy = {"thinking": reasoning, **copy, "reasoning_content": reasoning}
    content = copy.get("content")
    if isinstance(content, list):
        parts = [_part(index, part, placeholders) for part in content]
        copy["content"] = parts if as_parts else _joined(parts, placeholders)
    elif isinstance(content, str):
        if as_parts:
            copy["content"] = [{"type": "text", "text": content}]
    elif content is not None:
        raise RequestError(
            f"content of message {index} must be text or a list of parts, got {content!r}", param="messages"
        )
    return copy


def _part(index: int, part: Any, placeholders: Placeholders) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Mapping) and part.get("type", "text") in TEXT_PARTS:
        text = part.get("text", part.get("refusal"))
        if isinstance(text, str):
            return {"type": "text", "text": text}
        raise RequestError(f"a text part of message {index} has no text: {part!r}", param="messages")
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind in placeholders.of and set(part) == {"type"}:
        return {"type": str(kind)}
    takes = ", ".join(("text", *placeholders.of))
    raise UnsupportedError(
        f"message {index} has a content part of type {kind!r}, and what is taken here is {takes}", param="messages"
    )


def _joined(parts: Sequence[Mapping[str, str]], placeholders: Placeholders) -> str:
    """Parts as one text, as vLLM joins them: a text may have placeholders of its own, and lacks those that it has not."""
    texts = [part["text"] for part in parts if part["type"] == "text"]
    items = [placeholders.of[part["type"]] for part in parts if part["type"] != "text"]
    if placeholders.interleaved:
        return "\n".join(part["text"] if part["type"] == "text" else placeholders.of[part["type"]] for part in parts)
    text = "\n".join(texts)
    missing = [mark for mark in dict.fromkeys(items) for _ in range(max(0, items.count(mark) - text.count(mark)))]
    return "\n".join([*missing, *texts])
