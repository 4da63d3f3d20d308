"""Pythonic: `[f(a=1, b="x"), g()]`, calls as Python writes them. `true`, `false` and `null` are understood too."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

from jaxengine.front.parsers.calls import Call, Function, Functions, json_text
from jaxengine.front.parsers.regions import Outcome
from jaxengine.front.parsers.scan import BracketScanner, skip_space
from jaxengine.front.parsers.tools.grammar import alternatives, argument_rules, literal
from jaxengine.front.parsers.tools.traits import Traits

NAME = re.compile(r"[A-Za-z_][\w.-]*")
CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None}


class Pythonic(Traits):
    """The format."""

    markers: ClassVar[tuple[str, ...]] = ()
    starts: ClassVar[tuple[str, ...]] = ("[",)

    def region(self) -> PythonicRegion:
        """A scanner for one list of calls."""
        return PythonicRegion()

    def under_way(self, text: str) -> list[Call]:
        """The calls in a list that was cut; of the last, the arguments that are whole."""
        # A comma outside of brackets and strings ends an argument or a call: what is before the last one can be read.
        for at in (match.start() for match in reversed(list(re.finditer(r"[,(]", text)))):
            begin = text[: at + (text[at] == "(")]
            if calls := _read(f"{begin}]"):
                return calls
            if calls := _read(f"{begin})]"):
                return [*calls[:-1], Call(calls[-1].name, calls[-1].arguments.removesuffix("}"))]
        return []

    def grammar(self, functions: Functions, *, several: bool) -> str:
        """Calls of these functions and nothing else, in Lark."""
        rules = [_call_rule(function) for function in functions]
        return alternatives(rules, separator='", "', several=several, begin='"["', end='"]"')


class PythonicRegion:
    """A list that begins with a call."""

    def __init__(self) -> None:
        self._scanner = BracketScanner(quotes="\"'")
        self._position = 0
        self._begins = False

    def scan(self, text: str, *, final: bool) -> Outcome | None:
        if not self._begins:
            begins = _begins_a_call(text)
            if begins is None:
                return Outcome(len(text), None) if final else None
            if not begins:
                return Outcome(1, None)
            self._begins = True
        self._position, ended = self._scanner.scan(text, self._position)
        if not ended:
            return Outcome(len(text), None) if final else None
        return Outcome(self._position, _read(text[: self._position]))


def _begins_a_call(text: str) -> bool | None:
    """Whether a name and a parenthesis follow the bracket; None when they have yet to come."""
    at = skip_space(text, 1)
    if at == len(text):
        return None
    name = NAME.match(text, at)
    if name is None:
        return False
    after = skip_space(text, name.end())
    return None if after == len(text) else text[after] == "("


def _read(text: str) -> list[Call] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python thinks of the model's style is not for the log
            tree = ast.parse(text.strip(), mode="eval").body
        if not isinstance(tree, ast.List):
            return None
        return [_call(item) for item in tree.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with keywords")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("** is no keyword")
        arguments[keyword.arg] = _value(keyword.value)
    return Call(ast.unparse(node.func), json_text(arguments))


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in CONSTANTS:
        return CONSTANTS[node.id]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else ast.literal_eval(key) for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("JSON's keys are strings")
        return dict(zip(keys, map(_value, node.values), strict=True))
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item) for item in node.elts]
    return ast.literal_eval(node)


def _call_rule(function: Function) -> str:
    arguments = argument_rules(function, before=lambda name: f"{name}=", after="", separator=", ")
    return f'{literal(f"{function.name}(")} {arguments} ")"'
