"""A tool call, and the ways in which models write one in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxengine.front.parsers.scan import BracketScanner


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a model makes: the function's name, and its arguments as the text of a JSON object.

    `id` is what the model calls it, where its format has such names.
    """

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model may call; `parameters` is the JSON schema of its arguments, an object.

    `strict` says that its arguments must follow the schema even where the model decides whether to call.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False


Functions = Sequence[Function]


def load_json(text: str) -> Any:
    """A JSON value.

    Raises:
        ValueError: it is not JSON, or nested too deeply. Python's NaN and Infinity are not JSON.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_text(value: Any) -> str:
    """A value as JSON that can be sent as UTF-8.

    Raises:
        ValueError: JSON has no such value.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair stays escaped
        return json.dumps(value, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return text


def call_of(value: Any, *, keys: tuple[str, ...] = ("arguments", "parameters")) -> Call | None:
    """The call that an object with `name` and one of `keys` describes; None when it is none.

    Arguments may be left out, null, or an object in a string.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = next((value[key] for key in keys if key in value), None)
    try:
        if isinstance(arguments, str):
            arguments = load_json(arguments) if arguments.strip() else {}
        if arguments is None:
            arguments = {}
        return Call(value["name"], json_text(arguments)) if isinstance(arguments, dict) else None
    except ValueError:
        return None


def read_calls(text: str, *, name: str = "") -> list[Call] | None:
    """The calls in JSON, an object or a list of them, or with `name` its arguments; None where anything else is there."""
    try:
        value = load_json(text)
    except ValueError:
        return None
    if name:
        value = {"name": name, "arguments": value}
    calls = [call_of(item) for item in (value if isinstance(value, list) else [value])]
    known = [call for call in calls if call is not None]
    return known if known and len(known) == len(calls) else None


_UNDER_WAY = re.compile(
    r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*(?:,\s*"(?:arguments|parameters)"\s*:\s*(.*))?', re.DOTALL
)


def calls_under_way(text: str) -> list[Call]:
    """The calls in a text of JSON that was cut: the arguments of the last are as far as they came, which is no JSON.

    For text that a grammar has written: objects with `name`, then `arguments` or `parameters`.
    """
    calls: list[Call] = []
    at = 0
    while (found := _UNDER_WAY.search(text, at)) is not None:
        arguments = found.group(2) or ""
        end, whole = BracketScanner().scan(arguments, 0) if arguments else (0, False)
        calls.append(Call(load_json(found.group(1)), arguments[:end] if whole else arguments))
        if not whole:
            break
        at = found.start(2) + end
    return calls


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
