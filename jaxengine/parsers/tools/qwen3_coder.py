"""Qwen3 Coder: one element per call, one per argument, values as bare text:

<tool_call>
<function=f>
<parameter=a>
value
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jaxengine.parsers.calls import Call, Function, Functions, json_text, load_json
from jaxengine.parsers.regions import Outcome
from jaxengine.parsers.scan import skip_space
from jaxengine.parsers.tools.grammar import (
    alternatives,
    argument_schema,
    json_rule,
    literal,
    split_arguments,
)

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
HEAD = re.compile(r"<function=([^>\n]+)>")
PARAMETER = re.compile(r"<parameter=([^>\n]+)>")
END_PARAMETER = re.compile(r"</parameter>\s*(?=<parameter=|\Z)")
MOST_ENDS = 64
"""Closing tags that may stand in values before the text is given up as malformed."""


class Qwen3Coder:
    """The format; the functions' schemas say which values are text."""

    markers = (BEGIN, END)
    starts = (BEGIN, FUNCTION)

    def __init__(self, functions: Functions) -> None:
        self._functions = {function.name: function for function in functions}

    def region(self) -> FunctionRegion:
        """A scanner for one call."""
        return FunctionRegion(self._functions)

    def under_way(self, text: str) -> list[Call]:
        """The call in a region that was cut: the arguments that are whole."""
        begin = text.find(FUNCTION)
        whole = [match.end() for match in END_PARAMETER.finditer(text)]
        head = HEAD.match(text, begin) if begin >= 0 else None
        if head is None:
            return []
        call = FunctionRegion(self._functions).read(text[begin : whole[-1] if whole else head.end()] + END_FUNCTION)
        return [] if call is None else [Call(call.name, call.arguments.removesuffix("}"))]

    @staticmethod
    def grammar(functions: Functions, *, several: bool) -> str:
        """Calls of these functions and nothing else, in Lark; `marker_0` is the first of `markers`."""
        rules = []
        for function in functions:
            required, optional = split_arguments(function)
            arguments = [_argument_rule(function, name) for name in required]
            arguments += [f"({_argument_rule(function, name)})?" for name in optional]
            head = literal(f"\n{FUNCTION}{function.name}>\n")
            tail = literal(f"{END_FUNCTION}\n")
            rules.append(f"marker_0 {head} {' '.join(arguments)} {tail} marker_1")
        text = 'TEXT: /(.|\\n)*/\ntext[suffix="\\n</parameter>\\n"]: TEXT'
        return f"{alternatives(rules, separator=literal(chr(10)), several=several)}\n{text}"


class FunctionRegion:
    """One function with its arguments. `<tool_call>` around it may be missing."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions
        self._position = 0
        self._tries = 0
        self._found: tuple[int, Call] | None = None

    def scan(self, text: str, *, final: bool) -> Outcome | None:
        opening = 0
        if text.startswith(BEGIN):
            opening = skip_space(text, len(BEGIN))
            ahead = text[opening : opening + len(FUNCTION)]
            if ahead != FUNCTION:
                under_way = FUNCTION.startswith(ahead) and not final
                return None if under_way else Outcome(len(BEGIN), None)
        while self._found is None:
            at = text.find(END_FUNCTION, max(self._position, opening))
            if at < 0:
                self._position = max(self._position, len(text) - len(END_FUNCTION))
                return Outcome(len(text), None) if final else None
            self._position = end = at + len(END_FUNCTION)
            call = self.read(text[opening:end])
            self._tries += 1
            if call is not None:
                self._found = end, call
            elif self._tries == MOST_ENDS:
                return Outcome(end, None)
        end, call = self._found
        return _with_end(text, end, call, final=final) if opening else Outcome(end, (call,))

    def read(self, text: str) -> Call | None:
        """The call that a text from `<function=` to `</function>` makes, None when it is none."""
        head = HEAD.match(text)
        if head is None:
            return None
        name = head.group(1).strip()
        function = self._functions.get(name) or Function(name)
        body, arguments = text[head.end() : -len(END_FUNCTION)], {}
        at = skip_space(body, 0)
        while at < len(body):
            start = PARAMETER.match(body, at)
            end = None if start is None else END_PARAMETER.search(body, start.end())
            if start is None or end is None:
                return None
            key = start.group(1).strip()
            arguments[key] = _value(_trimmed(body[start.end() : end.start()]), argument_schema(function, key))
            at = end.end()
        return Call(name, json_text(arguments)) if name else None


def _with_end(text: str, end: int, call: Call, *, final: bool) -> Outcome | None:
    at = skip_space(text, end)
    ahead = text[at : at + len(END)]
    if ahead == END:
        return Outcome(at + len(END), (call,))
    if END.startswith(ahead) and not final:
        return None
    return Outcome(end, (call,))


def _trimmed(value: str) -> str:
    """A value without the line breaks that belong to its tags."""
    return value.removeprefix("\n").removesuffix("\n")


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """The JSON value that a schema takes a bare text for."""
    kinds = _kinds(schema)
    if text == "null" and (not kinds or "null" in kinds):
        return None
    if "boolean" in kinds and text in ("True", "False"):
        return text == "True"
    if not kinds or "string" in kinds:
        return text
    try:
        return load_json(text)
    except ValueError:
        return text


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema allows, as far as it says so plainly."""
    own = schema.get("type")
    kinds = {own} if isinstance(own, str) else {kind for kind in own or () if isinstance(kind, str)}
    for key in ("anyOf", "oneOf"):
        for part in schema.get(key) or ():
            kinds |= _kinds(part) if isinstance(part, Mapping) else set()
    if "enum" in schema and not kinds:
        kinds = {"string"} if any(isinstance(value, str) for value in schema["enum"]) else {"number"}
    return kinds or ({"object"} if "$ref" in schema else set())


def _argument_rule(function: Function, name: str) -> str:
    schema = argument_schema(function, name)
    opening, closing = literal(f"<parameter={name}>\n"), literal("\n</parameter>\n")
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if choices and all(isinstance(choice, str) for choice in choices):
        return f"{opening} ({' | '.join(map(literal, choices))}) {closing}"
    kinds = _kinds(schema)
    if not kinds or "string" in kinds:
        return f"{opening} text"
    return f"{opening} {json_rule(schema)} {closing}"
