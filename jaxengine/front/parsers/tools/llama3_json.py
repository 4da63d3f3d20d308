"""Llama 3: `{"name": "f", "parameters": {...}}` as the text itself, several with `;` between, perhaps after `<|python_tag|>`."""

from __future__ import annotations

from jaxengine.front.parsers.calls import Call, Functions, call_of, load_json
from jaxengine.front.parsers.regions import Outcome
from jaxengine.front.parsers.scan import BracketScanner, skip_space
from jaxengine.front.parsers.tools.grammar import alternatives, object_rule
from jaxengine.front.parsers.tools.traits import Traits

TAG = "<|python_tag|>"
FIRST_KEYS = ("name", "parameters", "arguments", "type")
"""An object that begins with another key is no call, and need not be held back until its end."""


class Llama3Json(Traits):
    """The format."""

    markers = (TAG,)
    starts = (TAG, "{")
    looks_like_json = True

    def __init__(self, functions: Functions = ()) -> None:
        self._names = frozenset(function.name for function in functions)

    def __call__(self, functions: Functions) -> Llama3Json:
        return Llama3Json(functions)

    def region(self) -> ObjectRegion:
        """A scanner for one call."""
        return ObjectRegion(self._names)

    def grammar(self, functions: Functions, *, several: bool) -> str:
        """Calls of these functions and nothing else, in Lark."""
        rules = [object_rule(function, arguments="parameters") for function in functions]
        return alternatives(rules, separator='"; "', several=several)


class ObjectRegion:
    """An object with a function's name, and the semicolon behind it when another one follows."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._scanner = BracketScanner()
        self._position = 0
        self._is_content = False
        self._end: int | None = None
        self._call: Call | None = None

    def scan(self, text: str, *, final: bool) -> Outcome | None:
        opening = 0
        if text.startswith(TAG):
            opening = skip_space(text, len(TAG))
            if opening == len(text):
                return Outcome(len(text), None) if final else None
            if text[opening] != "{":
                return Outcome(len(TAG), None)
        if self._is_content:
            return self._pass(text, self._position)
        if self._end is None:
            key = _first_key(text, opening)
            if key == "":
                return Outcome(opening + 1, None)
            if key is not None and key not in FIRST_KEYS:
                self._is_content = True
                return self._pass(text, max(self._position, opening))
            self._position, ended = self._scanner.scan(text, max(self._position, opening))
            if not ended:
                return Outcome(len(text), None) if final else None
            self._end = self._position
            self._call = self._read(text[opening : self._end])
        if self._call is None:
            return Outcome(self._end, None)
        return self._with_separator(text, self._end, self._call, final=final)

    def _pass(self, text: str, start: int) -> Outcome:
        """An object that is no call goes through as it comes, with all that is in it."""
        end, ended = self._scanner.scan(text, start)
        self._position = 0
        return Outcome(end, None, more=not ended)

    def _read(self, text: str) -> Call | None:
        try:
            value = load_json(text)
        except ValueError:
            return None
        call = call_of(value)
        named = isinstance(value, dict) and not {"parameters", "arguments"}.isdisjoint(value)
        return call if call is not None and (named or call.name in self._names) else None

    def _with_separator(self, text: str, end: int, call: Call, *, final: bool) -> Outcome | None:
        at = skip_space(text, end)
        if at < len(text) and text[at] != ";":
            return Outcome(end, (call,))
        after = skip_space(text, at + 1)
        if at >= len(text) or after >= len(text):
            return Outcome(end, (call,)) if final else None
        if not final and TAG.startswith(text[after:]):
            return None  # a tag, or something that begins like one
        begins = text.startswith(("{", TAG), after)
        return Outcome(after if begins else end, (call,))


def _first_key(text: str, opening: int) -> str | None:
    """The first key of the object; None while it may be one of a call, empty when what begins is no object with a key."""
    at = skip_space(text, opening + 1)
    if at == len(text):
        return None
    if text[at] != '"':
        return ""
    key, closed, _ = text[at + 1 :].partition('"')
    return key if closed or not any(call_key.startswith(key) for call_key in FIRST_KEYS) else None
