"""Reasoning as a block at the begin of a text, between two markers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from jaxengine.front.parsers.scan import held_back


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The markers of a block, and whether a text is inside it from the start when the prompt says nothing.

    `answer` is what a model writes between the block and an answer of a given form. `also` are other markers that a block may
    have, and `before_end` is what ends it as well and belongs to what follows.
    """

    begin: str
    end: str
    begins_open: bool
    answer: str = ""
    also: tuple[str, str] | None = None
    before_end: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be special tokens, which must then not be skipped."""
        return self.begin, self.end

    @property
    def begins(self) -> tuple[str, ...]:
        """What a block may begin with."""
        return (self.begin,) if self.also is None else (self.begin, self.also[0])

    @property
    def ends(self) -> tuple[str, ...]:
        """What a block may end with."""
        return tuple(filter(None, (self.end, *(self.also or ())[1:], self.before_end)))

    def opened_by(self, prompt: str) -> bool | None:
        """Whether the prompt leaves a block open; None when it says nothing about it at its end.

        The markers may stand anywhere in a conversation, so only a text that ends with one of them counts.
        """
        tail = prompt.rstrip()
        if tail.endswith(self.end):
            return False
        return True if tail.endswith(self.begin.rstrip()) else None

    def parser(self, opened: bool | None) -> ReasoningParser:
        """A parser for one sequence after a prompt that did (not) open or closed the block."""
        return BlockParser(self, opened=opened)


class Split(NamedTuple):
    """What a text gained."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser(ABC):
    """Splits one sequence's text. However it is cut into pieces, what comes out joined is the same.

    Attributes:
        answer_at: where in the text the content begins, once it has.
    """

    def __init__(self) -> None:
        self.answer_at: int | None = None
        self._buffer = ""
        self._num_read = 0

    def feed(self, text: str) -> Split:
        """Take the next piece of text; what it makes certain."""
        self._buffer += text
        self._num_read += len(text)
        return self._noted(self._advance(final=False))

    def finish(self) -> Split:
        """Nothing more comes."""
        return self._noted(self._advance(final=True))

    def _noted(self, split: Split) -> Split:
        if split.content and self.answer_at is None:
            self.answer_at = self._num_read - len(self._buffer) - len(split.content)
        return split

    @abstractmethod
    def _advance(self, *, final: bool) -> Split:
        """Take what is certain from the buffer."""


class BlockParser(ReasoningParser):
    """Splits a text into the block and what follows."""

    def __init__(self, format: ReasoningFormat, *, opened: bool | None) -> None:
        self._format = format
        super().__init__()
        self._inside: bool | None = opened
        """Whether the text is in the block; None while it may yet begin with the marker."""
        self._marker_may_come = opened is not False

    def _advance(self, *, final: bool) -> Split:
        if self._marker_may_come and not self._skip_begin(final=final):
            return Split()
        if not self._inside:
            text, self._buffer = self._buffer, ""
            return Split(content=text)
        ends = {self._buffer.find(end): end for end in self._format.ends if end in self._buffer}
        if ends:
            at, end = min(ends.items())
            behind = at if end == self._format.before_end else at + len(end)
            reasoning, content = self._buffer[:at], self._buffer[behind:]
            self._inside, self._buffer = False, ""
            return Split(reasoning, content)
        held = 0 if final else max(held_back(self._buffer, end) for end in self._format.ends)
        certain = len(self._buffer) - held
        text, self._buffer = self._buffer[:certain], self._buffer[certain:]
        return Split(reasoning=text)

    def _skip_begin(self, *, final: bool) -> bool:
        """Take the marker at the begin of the text away; False while it may yet come."""
        begin, markers = self._buffer.lstrip(), self._format.begins
        if not final and any(marker.startswith(begin) and begin != marker for marker in markers):
            return False
        self._marker_may_come = False
        found = next((marker for marker in markers if begin.startswith(marker)), None)
        if found is not None:
            self._buffer = begin[len(found) :]
            self._inside = True
        elif self._inside is None:
            self._inside = self._format.begins_open
        return True
