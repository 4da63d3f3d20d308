"""Mistral: `[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]`, or `[TOOL_CALLS]f[ARGS]{...}` once per call (newer)."""

from __future__ import annotations

import re

from jaxengine.front.parsers.calls import Functions, read_calls
from jaxengine.front.parsers.regions import Outcome
from jaxengine.front.parsers.scan import BracketScanner, skip_space
from jaxengine.front.parsers.tools.grammar import alternatives, object_rule
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

    def region(self) -> MistralRegion:
        """A scanner for what follows one marker."""
        return MistralRegion()

    def grammar(self, functions: Functions, *, several: bool) -> str:
        """Calls of these functions and nothing else, in Lark; `marker_0` is the first of `markers`."""
        rules = [object_rule(function) for function in functions]
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
        return Outcome(self._position, read_calls(text[self._opening : self._position], name=self._name))

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
