"""What formats of tool calls have in common: each is as said here, unless it says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from jaxengine.front.parsers.calls import Call, Functions, calls_under_way

AfterMarker = Literal["one", "several"]


class Traits:
    """The base of all formats.

    Attributes:
        looks_like_json: calls begin as any answer in JSON does, so that one cannot be told from the other.
        after_marker: how many calls follow a marker that announces them, None where no marker does. What is behind it can be held
            to a schema in the middle of free text.
        short_ids: the model's templates take call ids of nine letters and digits only.
    """

    looks_like_json = False
    after_marker: AfterMarker | None = None
    short_ids = False

    def __call__(self, functions: Functions) -> Self:
        """The format for a request's functions; most read calls without knowing them."""
        return self

    def under_way(self, text: str) -> Sequence[Call]:
        """As of `Format`, for calls in JSON."""
        return calls_under_way(text)
