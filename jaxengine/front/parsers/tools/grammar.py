"""Pieces of Lark grammars for forced tool calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxengine.front.parsers.calls import Function

WHITESPACE = "[ ]?"


def literal(text: str) -> str:
    """A string literal."""
    return json.dumps(text, ensure_ascii=False)


def json_rule(schema: Mapping[str, Any]) -> str:
    """JSON of a schema, compact but for a space after a separator."""
    return f"%json {json.dumps({**schema, 'x-guidance': {'whitespace_pattern': WHITESPACE}}, ensure_ascii=False)}"


def object_rule(function: Function, *, arguments: str = "arguments") -> str:
    """A call of a function as an object of JSON; `arguments` is the key of its arguments."""
    head = f'{{"name": {literal(function.name)}, "{arguments}": '
    return f'{literal(head)} {json_rule(function.parameters)} "}}"'


def alternatives(rules: Sequence[str], *, separator: str, several: bool, begin: str = "", end: str = "") -> str:
    """A grammar of one of `rules`, or of several with `separator` between them, all within `begin` and `end`."""
    more = f" ({separator} call)*" if several else ""
    lines = [f"start: {begin} call{more} {end}", "call: " + " | ".join(f"call_{i}" for i in range(len(rules)))]
    return "\n".join([*lines, *(f"call_{i}: {rule}" for i, rule in enumerate(rules))])


def argument_rules(function: Function, *, before: Callable[[str], str], after: str, separator: str) -> str:
    """A function's arguments one by one, each between texts: those that are required, then others in their order or not.

    Values are JSON.
    """
    required, optional = split_arguments(function)

    def argument(name: str) -> str:
        closing = f" {literal(after)}" if after else ""
        return f"{literal(before(name))} {json_rule(argument_schema(function, name))}{closing}"

    comma = f"{literal(separator)} " if separator else ""
    parts = [f"{comma if index else ''}{argument(name)}" for index, name in enumerate(required)]
    if required or not separator:
        return " ".join([*parts, *(f"({comma}{argument(name)})?" for name in optional)])
    # The first of the optional ones that is there has no separator before it.
    tails = [
        " ".join([argument(name), *(f"({comma}{argument(later)})?" for later in optional[index + 1 :])])
        for index, name in enumerate(optional)
    ]
    return f"({' | '.join(tails)})?" if tails else ""


def split_arguments(function: Function) -> tuple[list[str], list[str]]:
    """The names of the arguments that are required, and of the others."""
    properties = function.parameters.get("properties")
    names = list(properties) if isinstance(properties, Mapping) else []
    required = function.parameters.get("required")
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, Sequence) else []
    return needed, [name for name in names if name not in needed]


def argument_schema(function: Function, name: str) -> Mapping[str, Any]:
    """The schema of one argument, with the definitions that it may refer to."""
    properties = function.parameters.get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    shared = {key: function.parameters[key] for key in ("$defs", "definitions") if key in function.parameters}
    return {**(schema if isinstance(schema, Mapping) else {}), **shared}
