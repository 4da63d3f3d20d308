"""What is special about a format of tool calls: nothing, unless the format says so."""

from __future__ import annotations

from typing import ClassVar, Literal

AfterMarker = Literal["one", "several"]


class Traits:
    """The base of all formats.

    Attributes:
        looks_like_json: calls begin as any answer in JSON does, so that one cannot be told from the other.
        after_marker: how many calls follow a marker that announces them, None where no marker does. What is behind it can be held
            to a schema in the middle of free text.
        short_ids: the model's templates take call ids of nine letters and digits only.
    """

    looks_like_json: ClassVar[bool] = False
    after_marker: ClassVar[AfterMarker | None] = None
    short_ids: ClassVar[bool] = False
