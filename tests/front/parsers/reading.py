"""Feeding parsers whole, byte by byte and at random cuts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from jaxengine.front.parsers.calls import Call, Function
from jaxengine.front.parsers.reasoning import REASONING_FORMATS
from jaxengine.front.parsers.tools import tool_parser

WEATHER = Function(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
FUNCTIONS = (WEATHER, Function("now"))


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    """The text cut at the given places (any order, any range)."""
    places = sorted({min(abs(cut), len(text)) for cut in cuts} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(places)]


def read_calls(name: str, pieces: Sequence[str]) -> tuple[str, list[Call]]:
    """Content and calls, joined."""
    parser = tool_parser(name, FUNCTIONS)
    found = [item for piece in pieces for item in parser.feed(piece)] + parser.finish()
    content = "".join(item for item in found if isinstance(item, str))
    return content, [item for item in found if isinstance(item, Call)]


def read_reasoning(name: str, pieces: Sequence[str], *, opened: bool | None) -> tuple[str, str]:
    """Reasoning and content, joined."""
    parser = REASONING_FORMATS[name].parser(opened)
    splits = [*(parser.feed(piece) for piece in pieces), parser.finish()]
    return "".join(split.reasoning for split in splits), "".join(split.content for split in splits)
