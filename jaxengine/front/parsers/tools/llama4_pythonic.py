"""Llama 4: calls as `pythonic` has them, perhaps between `<|python_start|>` and `<|python_end|>`, which are never content."""

from __future__ import annotations

from jaxengine.front.parsers.calls import Call
from jaxengine.front.parsers.regions import Outcome
from jaxengine.front.parsers.tools.pythonic import Pythonic, PythonicRegion

MARKERS = ("<|python_start|>", "<|python_end|>")


class Llama4Pythonic(Pythonic):
    """The format."""

    markers = MARKERS
    starts = (*MARKERS, *Pythonic.starts)

    def region(self) -> Llama4Region:
        """A scanner for a marker or one list of calls."""
        return Llama4Region()

    def under_way(self, text: str) -> list[Call]:
        """As of `Pythonic`, which finds nothing in a marker."""
        for marker in MARKERS:
            text = text.replace(marker, "")
        return super().under_way(text)


class Llama4Region(PythonicRegion):
    """A marker, or a list that begins with a call."""

    def scan(self, text: str, *, final: bool) -> Outcome | None:
        for marker in MARKERS:
            if text.startswith(marker):
                return Outcome(len(marker), ())
        return super().scan(text, final=final)
