"""What stands in texts for pictures, videos and sounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Placeholders:
    """The text that stands for an item of each modality where a chat template reads text alone.

    It stands where the item is in its message with `interleaved`, else before the message's text.
    """

    of: Mapping[str, str] = field(default_factory=dict)
    interleaved: bool = False


NO_PLACEHOLDERS = Placeholders()
