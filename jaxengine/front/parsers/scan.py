"""Finding the end of nested text that arrives in pieces, each character looked at once."""

from __future__ import annotations

import re

CLOSES = {"{": "}", "[": "]", "(": ")"}


class BracketScanner:
    """Follows brackets and quoted strings of JSON or Python from an opening bracket to the one that closes it."""

    def __init__(self, *, quotes: str = '"') -> None:
        self._outside = re.compile(rf"[{re.escape(quotes)}{{}}\[\]()]")
        self._inside = {quote: re.compile(rf"[{quote}\\]") for quote in quotes}
        self._expected: list[str] = []
        self._quote = ""

    def scan(self, text: str, start: int) -> tuple[int, bool]:
        """Go on from `start`: how far it came, and whether that is the end (or a bracket that nothing opened).

        An end is just behind the closing bracket. Go on from there with more text.
        """
        position = start
        while True:
            pattern = self._inside[self._quote] if self._quote else self._outside
            match = pattern.search(text, position)
            if match is None:
                return len(text), False
            position = match.end()
            found = match.group()
            if found == "\\":
                if position == len(text):
                    return position - 1, False  # what is escaped has yet to come
                position += 1
            elif self._quote:
                self._quote = ""
            elif found in self._inside:
                self._quote = found
            elif found in CLOSES:
                self._expected.append(CLOSES[found])
            else:
                if not self._expected or self._expected.pop() != found:
                    return position, True
                if not self._expected:
                    return position, True


def held_back(text: str, marker: str) -> int:
    """How many characters at the end of `text` may be the beginning of `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


def skip_space(text: str, position: int) -> int:
    """The first position from `position` on that is no white space."""
    while position < len(text) and text[position].isspace():
        position += 1
    return position
