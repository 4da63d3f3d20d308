"""Calls as elements, with one for each argument, whose values are bare text:

Qwen3 Coder     <tool_call> <function=f> <parameter=a> value </parameter> </function> </tool_call>
GLM-4.5         <tool_call>f <arg_key>a</arg_key> <arg_value>value</arg_value> </tool_call>
MiniMax-M2      <minimax:tool_call> <invoke name="f"> <parameter name="a">value</parameter> </invoke> </minimax:tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxengine.front.parsers.calls import Call, Function, Functions, json_text, load_json
from jaxengine.front.parsers.regions import Outcome
from jaxengine.front.parsers.scan import skip_space
from jaxengine.front.parsers.tools.grammar import (
    alternatives,
    argument_schema,
    json_rule,
    literal,
    split_arguments,
)
from jaxengine.front.parsers.tools.traits import AfterMarker, Traits

MOST_ENDS = 64
"""Closing tags that may stand in values before the text is given up as malformed."""


@dataclass(frozen=True, kw_only=True)
class TaggedCalls(Traits):
    """A format.

    `around` are the tags around it, which may be missing, or None. `begin` is the text that begins a function, `head` all of it
    up to its arguments, `end` what ends it. `argument` begins an argument, `argument_end` ends it; a line break within either is
    no part of the value where `own_lines`. `written` is how the head, an argument's begin and end, and the end are written.
    """

    around: tuple[str, str] | None
    begin: str
    head: re.Pattern[str]
    end: str
    argument: re.Pattern[str]
    argument_end: re.Pattern[str]
    own_lines: bool
    written: tuple[str, str, str, str]
    after_marker: AfterMarker | None = None
    functions: Functions = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """The tags around a call, which may be special tokens."""
        return self.around or (self.begin, self.end)

    @property
    def starts(self) -> tuple[str, ...]:
        """What begins a region."""
        return (*(self.around or ())[:1], self.begin)

    def __call__(self, functions: Functions) -> TaggedCalls:
        return replace(self, functions=functions)

    def region(self) -> FunctionRegion:
        """A scanner for one call."""
        return FunctionRegion(self)

    def under_way(self, text: str) -> list[Call]:
        """The call in a region that was cut: the arguments that are whole."""
        begin = text.find(self.begin)
        whole = [match.end() for match in self.argument_end.finditer(text)]
        head = self.head.match(text, begin) if begin >= 0 else None
        if head is None:
            return []
        call = self.region().read(text[begin : whole[-1] if whole else head.end()] + self.end)
        return [] if call is None else [Call(call.name, call.arguments.removesuffix("}"))]

    def grammar(self, functions: Functions, *, several: bool) -> str:
        """Calls of these functions and nothing else, in Lark; `marker_0` is the first of `markers`."""
        begin, before, behind, end = self.written
        rules = []
        for function in functions:
            required, optional = split_arguments(function)
            arguments = [_argument_rule(function, name, before, behind) for name in required]
            arguments += [f"({_argument_rule(function, name, before, behind)})?" for name in optional]
            tail = literal(end) if end else ""
            rules.append(f"marker_0 {literal(begin.format(function.name))} {' '.join(arguments)} {tail} marker_1")
        text = f"TEXT: /(.|\\n)*/\ntext[suffix={literal(behind)}]: TEXT"
        return f"{alternatives(rules, separator=literal(chr(10)), several=several)}\n{text}"


class FunctionRegion:
    """One function with its arguments. The tags around it may be missing."""

    def __init__(self, tags: TaggedCalls) -> None:
        self._tags = tags
        self._functions = {function.name: function for function in tags.functions}
        self._position = 0
        self._tries = 0
        self._found: tuple[int, Call] | None = None

    def scan(self, text: str, *, final: bool) -> Outcome | None:
        tags, opening = self._tags, 0
        if tags.around is not None and text.startswith(tags.around[0]):
            opening = skip_space(text, len(tags.around[0]))
            ahead = text[opening : opening + len(tags.begin)]
            if ahead != tags.begin:
                under_way = tags.begin.startswith(ahead) and not final
                return None if under_way else Outcome(len(tags.around[0]), None)
        while self._found is None:
            at = text.find(tags.end, max(self._position, opening))
            if at < 0:
                self._position = max(self._position, len(text) - len(tags.end))
                return Outcome(len(text), None) if final else None
            self._position = end = at + len(tags.end)
            call = self.read(text[opening:end])
            self._tries += 1
            if call is not None:
                self._found = end, call
            elif self._tries == MOST_ENDS:
                return Outcome(end, None)
        end, call = self._found
        if not opening or tags.around is None:
            return Outcome(end, (call,))
        return _with_end(text, end, tags.around[1], call, final=final)

    def read(self, text: str) -> Call | None:
        """The call that a text from the function's begin to its end makes, None when it is none."""
        tags = self._tags
        head = tags.head.match(text)
        if head is None:
            return None
        name = head.group(1).strip()
        function = self._functions.get(name) or Function(name)
        body, arguments = text[head.end() : -len(tags.end)], {}
        at = skip_space(body, 0)
        while at < len(body):
            start = tags.argument.match(body, at)
            end = None if start is None else tags.argument_end.search(body, start.end())
            if start is None or end is None:
                return None
            key, value = start.group(1).strip(), body[start.end() : end.start()]
            arguments[key] = _value(_trimmed(value) if tags.own_lines else value, argument_schema(function, key))
            at = end.end()
        return Call(name, json_text(arguments)) if name else None


def _with_end(text: str, end: int, tag: str, call: Call, *, final: bool) -> Outcome | None:
    at = skip_space(text, end)
    ahead = text[at : at + len(tag)]
    if ahead == tag:
        return Outcome(at + len(tag), (call,))
    if tag.startswith(ahead) and not final:
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


def _argument_rule(function: Function, name: str, before: str, behind: str) -> str:
    schema = argument_schema(function, name)
    opening, closing = literal(before.format(name)), literal(behind)
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if choices and all(isinstance(choice, str) for choice in choices):
        return f"{opening} ({' | '.join(map(literal, choices))}) {closing}"
    kinds = _kinds(schema)
    if not kinds or "string" in kinds:
        return f"{opening} text"
    return f"{opening} {json_rule(schema)} {closing}"


QWEN3_CODER = TaggedCalls(
    around=("<tool_call>", "</tool_call>"),
    begin="<function=",
    head=re.compile(r"<function=([^>\n]+)>"),
    end="</function>",
    argument=re.compile(r"<parameter=([^>\n]+)>"),
    argument_end=re.compile(r"</parameter>\s*(?=<parameter=|\Z)"),
    own_lines=True,
    written=("\n<function={}>\n", "<parameter={}>\n", "\n</parameter>\n", "</function>\n"),
    after_marker="one",
)
GLM45 = TaggedCalls(
    around=None,
    begin="<tool_call>",
    head=re.compile(r"<tool_call>\s*([^\s<>{}\[\]\"]+)[ ]*(?=\n|<)"),
    end="</tool_call>",
    argument=re.compile(r"<arg_key>([^<\n]+)</arg_key>\s*<arg_value>"),
    argument_end=re.compile(r"</arg_value>\s*(?=<arg_key>|\Z)"),
    own_lines=False,
    written=("{}\n", "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n", ""),
)
MINIMAX_M2 = TaggedCalls(
    around=("<minimax:tool_call>", "</minimax:tool_call>"),
    begin="<invoke name=",
    head=re.compile(r"<invoke name=[\"']?([^>\"'\n]+)[\"']?>"),
    end="</invoke>",
    argument=re.compile(r"<parameter name=[\"']?([^>\"'\n]+)[\"']?>"),
    argument_end=re.compile(r"</parameter>\s*(?=<parameter name=|\Z)"),
    own_lines=False,
    written=('\n<invoke name="{}">\n', '<parameter name="{}">', "</parameter>\n", "</invoke>\n"),
)
