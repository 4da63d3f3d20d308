"""Calls that stand between markers of their own, in a section of such, the name before the arguments in JSON:

DeepSeek V3     section [ call function<sep>f\\n```json\\n{...}\\n``` end ] end
DeepSeek V3.1   section [ call f<sep>{...} end ] end
Kimi K2         section [ call functions.f:0<sep>{...} end ] end
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from jaxengine.front.parsers.calls import Call, Functions, read_calls
from jaxengine.front.parsers.regions import Outcome
from jaxengine.front.parsers.scan import BracketScanner, skip_space
from jaxengine.front.parsers.tools.grammar import alternatives, json_rule, literal
from jaxengine.front.parsers.tools.traits import Traits

LONGEST_HEAD = 512


@dataclass(frozen=True, kw_only=True)
class Sections(Traits):
    """A format. `head` matches what stands between a call's begin and its arguments, `fence` closes what the head opened.

    `written` is how a head is written, in Lark, of a function's name; `marker_4` is `separator`. `several` calls may be forced
    with `between` them.
    """

    section: tuple[str, str]
    call: tuple[str, str]
    separator: str
    head: re.Pattern[str]
    fence: str = ""
    written: tuple[str, str]
    between: str

    @property
    def markers(self) -> tuple[str, ...]:
        """All of them may be special tokens."""
        return (*self.section, *self.call, self.separator)

    @property
    def starts(self) -> tuple[str, ...]:
        """What begins a region."""
        return self.section[0], self.call[0]

    def region(self) -> SectionRegion:
        """A scanner for one call."""
        return SectionRegion(self)

    def under_way(self, text: str) -> list[Call]:
        """The call in a region that was cut, as far as it came."""
        begin = text.find(self.call[0])
        brace = text.find("{", begin)
        head = self.head.fullmatch(text[begin + len(self.call[0]) : brace]) if 0 <= begin < brace else None
        if head is None:
            return []
        end, whole = BracketScanner().scan(text, brace)
        return [Call(head["name"], text[brace:end] if whole else text[brace:], head.groupdict().get("id"))]

    def grammar(self, functions: Functions, *, several: bool) -> str:
        """Calls of these functions and nothing else, in Lark; `marker_0` is the first of `markers`."""
        before, behind = self.written
        rules = []
        for function in functions:
            head = f"marker_2 {before.format(literal(function.name))} marker_4 {behind.format(literal(function.name))}"
            fence = literal(f"\n{self.fence}") if self.fence else ""
            rules.append(f"{head} {json_rule(function.parameters)} {fence} marker_3")
        return alternatives(rules, separator=self.between, several=several, begin="marker_0", end="marker_1")


class SectionRegion:
    """One call. The section begins with the first and ends with the last; either of its markers may be missing."""

    def __init__(self, format: Sections) -> None:
        self._format = format
        self._scanner = BracketScanner()
        self._position = 0
        self._brace = -1
        self._json_end: int | None = None

    def scan(self, text: str, *, final: bool) -> Outcome | None:
        form = self._format
        first = next(start for start in form.starts if text.startswith(start))
        begin = 0
        if first == form.section[0]:
            begin = skip_space(text, len(first))
            if not text.startswith(form.call[0], begin):
                under_way = form.call[0].startswith(text[begin:]) and not final
                return None if under_way else Outcome(len(first), None)
        begin += len(form.call[0])
        if self._brace < 0:
            self._brace = text.find("{", begin, begin + LONGEST_HEAD)
            if self._brace < 0:
                hopeless = final or len(text) >= begin + LONGEST_HEAD
                return Outcome(len(first), None) if hopeless else None
            self._position = self._brace
        head = form.head.fullmatch(text[begin : self._brace])
        if head is None:
            return Outcome(len(first), None)
        if self._json_end is None:
            self._position, ended = self._scanner.scan(text, self._position)
            if not ended:
                return Outcome(len(text), None) if final else None
            self._json_end = self._position
        return self._close(text, self._brace, self._json_end, head, final=final)

    def _close(self, text: str, brace: int, end: int, head: re.Match[str], *, final: bool) -> Outcome | None:
        """Behind the arguments."""
        at, missing = end, False
        for marker in (*filter(None, (self._format.fence,)), self._format.call[1]):
            at = skip_space(text, at)
            if text.startswith(marker, at):
                at += len(marker)
            elif marker.startswith(text[at:]):
                if not final:
                    return None
                missing = True
                break
            else:
                return Outcome(end, None)
        if missing and at < len(text):
            return Outcome(end, None)
        calls = read_calls(text[brace:end], name=head["name"])
        if calls is None:
            return Outcome(at, None)
        calls = [replace(call, id=head.groupdict().get("id")) for call in calls]
        after, last = skip_space(text, at), self._format.section[1]
        if text.startswith(last, after):
            return Outcome(after + len(last), calls)
        if last.startswith(text[after:]) and not final:
            return None
        return Outcome(at, calls)


_BAR = "\uff5c"  # DeepSeek's markers have the wide one
_SEPARATOR = f"<{_BAR}tool▁sep{_BAR}>"
_SECTION = (f"<{_BAR}tool▁calls▁begin{_BAR}>", f"<{_BAR}tool▁calls▁end{_BAR}>")
_CALL = (f"<{_BAR}tool▁call▁begin{_BAR}>", f"<{_BAR}tool▁call▁end{_BAR}>")

DEEPSEEK_V3 = Sections(
    section=_SECTION,
    call=_CALL,
    separator=_SEPARATOR,
    head=re.compile(rf"\s*function{_SEPARATOR}(?P<name>[^\s<]+)\s*```(?:json)?\s*"),
    fence="```",
    written=('"function"', '{} "\\n```json\\n"'),
    between='"\\n"',
)
DEEPSEEK_V31 = Sections(
    section=_SECTION,
    call=_CALL,
    separator=_SEPARATOR,
    head=re.compile(rf"\s*(?P<name>[^\s<]+)\s*{_SEPARATOR}\s*"),
    written=("{}", ""),
    between="",
)
KIMI_K2 = Sections(
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    call=("<|tool_call_begin|>", "<|tool_call_end|>"),
    separator="<|tool_call_argument_begin|>",
    head=re.compile(r"\s*(?P<id>functions\.(?P<name>[^\s<]+):\d+)\s*<\|tool_call_argument_begin\|>\s*"),
    written=('"functions." {} ":" /[0-9]/', ""),
    between="",
)
