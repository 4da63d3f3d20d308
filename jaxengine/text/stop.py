"""Stop strings over text that arrives in pieces."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`stop` was found; `keep` characters of the text so far stay."""

    stop: str
    keep: int


class StopStrings:
    """Looks for the stop string that is completed first; of those completed by the same character, the longest.

    The answer does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._include = include
        self._longest = len(self._stops[0]) if self._stops else 0
        self._length = 0
        self._tail = ""

    @property
    def holdback(self) -> int:
        """Characters at the end of a running text that may turn out to be the start of a stop string."""
        return 0 if self._include else max(0, self._longest - 1)

    def feed(self, text: str, *, searching: bool = True) -> StopMatch | None:
        """Take the next piece of text; while not `searching`, matches that end in it do not count."""
        if not self._stops:
            return None
        window = self._tail + text
        start = self._length - len(self._tail)
        found = self._first(window, seen=len(self._tail)) if searching else None
        self._length += len(text)
        self._tail = window[len(window) - min(len(window), self._longest - 1) :]
        if found is None:
            return None
        end, stop = found
        return StopMatch(stop, start + end - (0 if self._include else len(stop)))

    def _first(self, window: str, *, seen: int) -> tuple[int, str] | None:
        """The smallest end of a match beyond the `seen` characters, and its stop string."""
        best: tuple[int, str] | None = None
        for stop in self._stops:
            at = window.find(stop, max(0, seen - len(stop) + 1))
            if at >= 0 and (best is None or at + len(stop) < best[0]):
                best = at + len(stop), stop
        return best
