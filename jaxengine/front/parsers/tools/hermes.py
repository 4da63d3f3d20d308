"""Hermes and Qwen: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, once per call."""

from __future__ import annotations

from jaxengine.front.parsers.calls import Functions, read_calls
from jaxengine.front.parsers.regions import Outcome
from jaxengine.front.parsers.scan import BracketScanner, skip_space
from jaxengine.front.parsers.tools.grammar import alternatives, json_rule, literal
from jaxengine.front.parsers.tools.traits import Traits

BEGIN, END = "<tool_call>", "</tool_call>"
CLOSE = r'"}\n"'


class Hermes(Traits):
    """The format."""

    markers = (BEGIN, END)
    starts = (BEGIN,)
    after_marker = "one"

    def region(self) -> HermesRegion:
        """A scanner for one call."""
        return HermesRegion()

    def grammar(self, functions: Functions, *, several: bool) -> str:
        """Calls of these functions and nothing else, in Lark; `marker_0` is the first of `markers`."""
        rules = []
        for function in functions:
            head = f'\n{{"name": {literal(function.name)}, "arguments": '
            rules.append(f"marker_0 {literal(head)} {json_rule(function.parameters)} {CLOSE} marker_1")
        return alternatives(rules, separator='"\\n"', several=several)


class HermesRegion:
    """From `<tool_call>` to `</tool_call>`; the latter counts only behind the JSON, and may be missing at the very end."""

    def __init__(self) -> None:
        self._scanner = BracketScanner()
        self._position = len(BEGIN)
        self._json_end: int | None = None

    def scan(self, text: str, *, final: bool) -> Outcome | None:
        start = skip_space(text, len(BEGIN))
        if start == len(text):
            return Outcome(len(text), None) if final else None
        if text[start] != "{":
            return Outcome(len(BEGIN), None)
        if self._json_end is None:
            self._position, ended = self._scanner.scan(text, max(self._position, start))
            if not ended:
                return Outcome(len(text), None) if final else None
            self._json_end = self._position
        return self._close(text, start, self._json_end, final=final)

    def _close(self, text: str, start: int, end: int, *, final: bool) -> Outcome | None:
        at = skip_space(text, end)
        rest = text[at : at + len(END)]
        if rest != END and END.startswith(rest) and not final:
            return None
        calls = read_calls(text[start:end])
        closed = rest == END or (final and at == len(text))
        if calls is None or not closed:
            return Outcome(at + len(END) if rest == END else at, None)
        return Outcome(min(at + len(END), len(text)), calls)
