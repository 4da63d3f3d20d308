"""Calls in JSON behind a marker, an object or a list of them:

Granite         <|tool_call|>[{"name": "f", "arguments": {...}}]
Jamba           <tool_calls>[{"name": "f", "arguments": {...}}]</tool_calls>
Phi-4 mini      functools[{"name": "f", "arguments": {...}}]
xLAM            [{"name": "f", "arguments": {...}}]
InternLM        <|action_start|><|plugin|>{"name": "f", "parameters": {...}}<|action_end|>
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.front.parsers.calls import Functions, read_calls
from jaxengine.front.parsers.regions import Outcome
from jaxengine.front.parsers.scan import BracketScanner, skip_space
from jaxengine.front.parsers.tools.grammar import alternatives, object_rule
from jaxengine.front.parsers.tools.traits import Traits

LIST = "["


@dataclass(frozen=True, kw_only=True)
class MarkedJson(Traits):
    """A format. `starts` are what begins a region; `end` may stand behind it.

    `markers` may be special tokens. `before` and `behind` are what a grammar has around calls; `listed` says whether they are a
    list there. `arguments` is the key of a call's arguments.
    """

    starts: tuple[str, ...]
    markers: tuple[str, ...]
    before: str
    behind: str
    end: str = ""
    listed: bool = True
    arguments: str = "arguments"

    def region(self) -> JsonRegion:
        """A scanner for what follows one marker."""
        return JsonRegion(self)

    def grammar(self, functions: Functions, *, several: bool) -> str:
        """Calls of these functions and nothing else, in Lark; `marker_0` is the first of `markers`."""
        rules = [object_rule(function, arguments=self.arguments) for function in functions]
        before, behind = (f'{self.before} "["', f'"]" {self.behind}') if self.listed else (self.before, self.behind)
        return alternatives(rules, separator='", "', several=several and self.listed, begin=before, end=behind)


class JsonRegion:
    """A marker, and the list or the object behind it."""

    def __init__(self, format: MarkedJson) -> None:
        self._format = format
        self._scanner = BracketScanner()
        self._position = 0
        self._json_end: int | None = None

    def scan(self, text: str, *, final: bool) -> Outcome | None:
        start = next(start for start in self._format.starts if text.startswith(start))
        opening = 0 if start == LIST else skip_space(text, len(start))
        inside = skip_space(text, opening + 1)
        if inside >= len(text):  # whether an object begins cannot be told yet
            hopeless = final or (opening < len(text) and text[opening] not in "[{")
            return Outcome(len(start), None) if hopeless else None
        if text[opening] != "{" and text[opening : opening + 1] + text[inside] != "[{":
            return Outcome(len(start), None)
        if self._json_end is None:
            self._position, ended = self._scanner.scan(text, max(self._position, opening))
            if not ended:
                return Outcome(len(text), None) if final else None
            self._json_end = self._position
        calls = read_calls(text[opening : self._json_end])
        if calls is None or not self._format.end:
            return Outcome(self._json_end, calls)
        at, end = skip_space(text, self._json_end), self._format.end
        if text.startswith(end, at):
            return Outcome(at + len(end), calls)
        if end.startswith(text[at:]) and not final:
            return None
        return Outcome(self._json_end, calls)


GRANITE = MarkedJson(starts=("<|tool_call|>", "<tool_call>"), markers=("<|tool_call|>",), before="marker_0", behind="")
JAMBA = MarkedJson(
    starts=("<tool_calls>",),
    markers=("<tool_calls>", "</tool_calls>"),
    before="marker_0",
    behind="marker_1",
    end="</tool_calls>",
)
PHI4_MINI_JSON = MarkedJson(starts=("functools",), markers=(), before='"functools"', behind="")
XLAM = MarkedJson(starts=(LIST,), markers=(), before="", behind="")
INTERNLM = MarkedJson(
    starts=("<|action_start|><|plugin|>",),
    markers=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    before="marker_0 marker_1",
    behind="marker_2",
    end="<|action_end|>",
    listed=False,
    arguments="parameters",
)
