"""Content with calls in it: the part that all formats share. A format says where a region of calls begins, ends and what it says.

text:    Let me look. <tool_call>{"name": ...}</tool_call>
         |- content -|------------- region -------------|
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jaxengine.front.parsers.calls import Call
from jaxengine.front.parsers.scan import held_back

Piece = str | Call
"""Content, or a call."""


class Outcome(NamedTuple):
    """A region is over after `end` characters: these calls, or None when that text is content after all.

    With `more` it is content that goes on: the region is asked again about what follows.
    """

    end: int
    calls: Sequence[Call] | None
    more: bool = False


class Region(Protocol):
    """One region while its text arrives."""

    def scan(self, text: str, *, final: bool) -> Outcome | None:
        """Look at the text from the region's begin to now, of which earlier calls saw the first part.

        None while it cannot be told; never None when the text is `final`.
        """
        ...


class Format(Protocol):
    """Where regions begin."""

    @property
    def starts(self) -> Sequence[str]:
        """The texts that begin a region."""
        ...

    def region(self) -> Region:
        """A scanner for a new region."""
        ...

    def under_way(self, text: str) -> Sequence[Call]:
        """The calls in the text of a region that was cut before its end; the arguments of the last are as far as they came."""
        ...


class RegionParser:
    """Splits text into content and calls. However it is cut into pieces, what comes out joined is the same.

    White space beside a call is dropped where it would begin or end the content.
    """

    def __init__(self, format: Format) -> None:
        self._format = format
        self._buffer = ""
        self._region: Region | None = None
        self._space = ""
        self._wrote_content = False
        self._saw_call = False

    def feed(self, text: str) -> list[Piece]:
        """Take the next piece of text; what it makes certain."""
        self._buffer += text
        return self._advance(final=False)

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """Nothing more comes. With `cut` the text is nothing but calls and was ended in the middle of one."""
        if cut:
            pieces: list[Piece] = list(self._format.under_way(self._buffer))
            self._buffer = ""
            return pieces
        pieces = self._advance(final=True)
        if self._space and not self._saw_call:
            pieces.append(self._space)
        self._space = ""
        return pieces

    def _advance(self, *, final: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while self._buffer:
            if self._region is None:
                certain, begins = self._find_start(final=final)
                self._add_content(pieces, self._buffer[:certain])
                self._buffer = self._buffer[certain:]
                if not begins:
                    break
                self._region = self._format.region()
            outcome = self._region.scan(self._buffer, final=final)
            if outcome is None:
                break
            if outcome.more:
                end = len(self._buffer) if final else outcome.end
                self._add_content(pieces, self._buffer[:end])
                self._buffer = self._buffer[end:]
                break
            self._region = None
            if outcome.calls is None:
                self._add_content(pieces, self._buffer[: outcome.end])
            else:
                pieces += outcome.calls
                self._saw_call = self._saw_call or bool(outcome.calls)
                self._space = "" if not self._wrote_content else self._space
            self._buffer = self._buffer[outcome.end :]
        return pieces

    def _find_start(self, *, final: bool) -> tuple[int, bool]:
        """How much of the buffer is certainly content, and whether a region begins there."""
        found = [at for start in self._format.starts if (at := self._buffer.find(start)) >= 0]
        if found:
            return min(found), True
        held = 0 if final else max(held_back(self._buffer, start) for start in self._format.starts)
        return len(self._buffer) - held, False

    def _add_content(self, pieces: list[Piece], text: str) -> None:
        """White space at the end waits: it is dropped when a call or the end follows."""
        text = self._space + text
        kept = text.rstrip()
        if self._saw_call and not self._wrote_content:
            kept = kept.lstrip()
        self._space = text[len(text.rstrip()) :]
        if kept:
            pieces.append(kept)
            self._wrote_content = True
