"""Gemma 4: `<|tool_call>call:f{a:<|"|>text<|"|>,n:3,list:[true]}<tool_call|>`, once per call; texts have marks of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jaxengine.front.parsers.calls import Call, Function, Functions, json_text, load_json
from jaxengine.front.parsers.regions import Outcome
from jaxengine.front.parsers.scan import skip_space
from jaxengine.front.parsers.tools.grammar import alternatives, argument_schema, json_rule, literal, split_arguments
from jaxengine.front.parsers.tools.traits import Traits

BEGIN, END, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
HEAD = "call:"
MARK = re.compile(re.escape(QUOTE) + "|" + re.escape(END))
NAME = re.compile(r"call:\s*([\w.:/-]+)\s*(?=\{)")
KEY = re.compile(r"\s*([^\s:,{}\[\]]+)\s*:")
BARE = re.compile(r"[^,{}\[\]]*")
CONSTANTS: Mapping[str, Any] = {"None": None, "True": True, "False": False}
"""How templates may have shown these to the model."""


class Gemma4(Traits):
    """The format."""

    markers = (BEGIN, END, QUOTE)
    starts = (BEGIN,)

    def region(self) -> Gemma4Region:
        """A scanner for one call."""
        return Gemma4Region()

    def under_way(self, text: str) -> list[Call]:
        """The call in a region that was cut: the arguments that are whole."""
        body = text.removeprefix(BEGIN)
        for at in (match.start() for match in reversed(list(re.finditer(r"[,{]", body)))):
            call = _read(f"{body[: at + (body[at] == '{')]}}}")
            if call is not None:
                return [Call(call.name, call.arguments.removesuffix("}"))]
        return []

    def grammar(self, functions: Functions, *, several: bool) -> str:
        """Calls of these functions and nothing else, in Lark; `marker_0` is the first of `markers`."""
        rules = [f'marker_0 {literal(f"call:{f.name}{{")} {_arguments(f)} "}}" marker_1' for f in functions]
        text = [
            r"TEXT: /([^<]|<[^|])*/",
            "text: marker_2 TEXT marker_2",
            "any: text | ANY_NUMBER | list | object",
            "ANY_NUMBER: /-?(0|[1-9][0-9]*)(\\.[0-9]+)?|true|false|null/",
            'list: "[" (any ("," any)*)? "]"',
            'object: "{" (field ("," field)*)? "}"',
            'field: /[A-Za-z_][A-Za-z0-9_]*/ ":" any',
        ]
        return "\n".join([alternatives(rules, separator='""', several=several), *text])


class Gemma4Region:
    """From `<|tool_call>` to `<tool_call|>`, which counts only outside of texts and may be missing at the very end."""

    def __init__(self) -> None:
        self._position = len(BEGIN)
        self._in_text = False

    def scan(self, text: str, *, final: bool) -> Outcome | None:
        ahead = text[len(BEGIN) : len(BEGIN) + len(HEAD)]
        if ahead != HEAD:
            under_way = HEAD.startswith(ahead) and not final
            return None if under_way else Outcome(len(BEGIN), None)
        while (mark := MARK.search(text, self._position)) is not None:
            self._position = mark.end()
            if mark.group() == QUOTE:
                self._in_text = not self._in_text
            elif not self._in_text:
                call = _read(text[len(BEGIN) : mark.start()])
                return Outcome(mark.end(), None if call is None else (call,))
        self._position = max(self._position, len(text) - len(END) + 1)
        if not final:
            return None
        call = _read(text[len(BEGIN) :])
        return Outcome(len(text), None if call is None else (call,))


def _read(text: str) -> Call | None:
    """The call that a text describes, None when it is none."""
    head = NAME.match(text)
    if head is None:
        return None
    try:
        arguments, end = _object(text, head.end())
        return Call(head.group(1), json_text(arguments)) if skip_space(text, end) == len(text) else None
    except (ValueError, RecursionError):
        return None


def _value(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at a place, and where it ends.

    Raises:
        ValueError: there is none.
    """
    at = skip_space(text, at)
    if text.startswith(QUOTE, at):
        end = text.index(QUOTE, at + len(QUOTE))
        return text[at + len(QUOTE) : end], end + len(QUOTE)
    if text.startswith("{", at):
        return _object(text, at)
    if text.startswith("[", at):
        return _list(text, at)
    bare = BARE.match(text, at)
    assert bare is not None
    written = bare.group().strip()
    return CONSTANTS[written] if written in CONSTANTS else load_json(written), bare.end()


def _object(text: str, at: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    at = skip_space(text, at + 1)
    while not text.startswith("}", at):
        if text.startswith(QUOTE, at):
            name, at = _value(text, at)
            at = text.index(":", at) + 1
        elif (key := KEY.match(text, at)) is not None:
            name, at = key.group(1), key.end()
        else:
            raise ValueError("no key")
        found[name], at = _value(text, at)
        at = _next(text, at, "}")
    return found, at + 1


def _list(text: str, at: int) -> tuple[list[Any], int]:
    found = []
    at = skip_space(text, at + 1)
    while not text.startswith("]", at):
        value, at = _value(text, at)
        found.append(value)
        at = _next(text, at, "]")
    return found, at + 1


def _next(text: str, at: int, closing: str) -> int:
    """Behind the comma after a value, or at the `closing` bracket."""
    at = skip_space(text, at)
    if text.startswith(",", at):
        return skip_space(text, at + 1)
    if not text.startswith(closing, at):
        raise ValueError("neither a comma nor an end")
    return at


def _arguments(function: Function) -> str:
    """Those that are required, then others in their order or not, with commas between them."""
    required, optional = split_arguments(function)
    rule = {name: f"{literal(f'{name}:')} {_rule(argument_schema(function, name))}" for name in (*required, *optional)}
    if required:
        return " ".join([' "," '.join(rule[name] for name in required), *(f'("," {rule[name]})?' for name in optional)])
    tails = [
        " ".join([rule[name], *(f'("," {rule[later]})?' for later in optional[index + 1 :])])
        for index, name in enumerate(optional)
    ]
    return f"({' | '.join(tails)})?" if tails else ""


def _rule(schema: Mapping[str, Any]) -> str:
    """A value of a schema; of a list or an object any."""
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if choices and all(isinstance(choice, str) for choice in choices):
        return f"marker_2 ({' | '.join(map(literal, choices))}) marker_2"
    kind = schema.get("type")
    if kind in ("integer", "number", "boolean", "null"):
        return json_rule(schema)
    return {"string": "text", "array": "list", "object": "object"}.get(kind, "any") if isinstance(kind, str) else "any"
