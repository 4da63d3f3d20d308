"""Mistral: `[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]`, or `[TOOL_CALLS]f[ARGS]{...}` once per call (newer)."""

from __future__ import annotations

import re

from jaxengine.front.parsers.calls import Call, Functions, call_of, calls_under_way, load_json
from jaxengine.front.parsers.regions import Outcome
from jaxengine.front.parsers.scan import BracketScanner, skip_space
from jaxengine.front.parsers.tools.grammar import alternatives, json_rule, literal
from jaxengine.front.parsers.tools.traits import Traits

BEGIN = "[TOOL_CALLS]"
NAMED = re.compile(r"([\w.-]+)\s*(?:\[CALL_ID\][\w-]*)?\s*(?:\[ARGS\])?\s*")
NAME_UNDER_WAY = re.compile(r"[\w.-]+\s*(?:\[[A-Z_]*\]?[\w-]*\s*){0,2}(?:\[[A-Z_]*)?")


class Mistral(Traits):
    """The format."""

    markers = (BEGIN, "[ARGS]", "[CALL_ID]")
    starts = (BEGIN,)
    after_marker = "several"
    short_ids = True

    def __init__(self, functions: Functions) -> None:
        del functions  # the text says it all

    def region(self) -> MistralRegion:
        """A scanner for what follows one marker."""
        return MistralRegion()

    @staticmethod
    def under_way(text: str) -> list[Call]:
        """The calls in a region that was cut, the last as far as it came."""
        return calls_under_way(text)

    @staticmethod
    def grammar(functions: Functions, *, several: bool) -> str:
        """Calls of these functions and nothing else, in Lark; `marker_0` is the first of `markers`."""
        rules = []
        for function in functions:
            head = f'{{"name": {literal(function.name)}, "arguments": '
            rules.append(f'{literal(head)} {json_rule(function.parameters)} "}}"')
        return alternatives(rules, separator='", "', several=several, begin='marker_0 "["', end='"]"')


class MistralRegion:
    """A marker, and the list, the object, or the name and the arguments behind it."""

    def __init__(self) -> None:
        self._scanner = BracketScanner()
        self._position = 0
        self._name = ""
        self._opening: int | None = None

    def scan(self, text: str, *, final: bool) -> Outcome | None:
        if self._opening is None:
            self._opening = self._find_opening(text)
            if self._opening is None:
                return Outcome(len(text), None) if final else None
            if self._opening < 0:
                return Outcome(len(BEGIN), None)
            self._position = self._opening
        self._position, ended = self._scanner.scan(text, self._position)
        if not ended:
            return Outcome(len(text), None) if final else None
        return Outcome(self._position, self._read(text[self._opening : self._position]))

    def _find_opening(self, text: str) -> int | None:
        """Where the JSON begins: None when it has yet to come, -1 when something else does."""
        at = skip_space(text, len(BEGIN))
        if at == len(text):
            return None
        if text[at] in "[{":
            return at
        named = NAMED.match(text, at)
        if named is not None and named.end() < len(text) and text[named.end()] == "{":
            self._name = named.group(1)
            return named.end()
        under_way = NAME_UNDER_WAY.fullmatch(text, at) is not None
        return None if under_way else -1

    def _read(self, text: str) -> list[Call] | None:
        try:
            value = load_json(text)
        except ValueError:
            return None
        if self._name:
            value = [{"name": self._name, "arguments": value}]
        calls = [call_of(item) for item in (value if isinstance(value, list) else [value])]
        known = [call for call in calls if call is not None]
        return known if known and len(known) == len(calls) else None
