"""gpt-oss: messages of the channel `analysis` are reasoning, others content; those to a tool stay as they are, for its parser."""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.front.parsers.harmony import BEGINS, ENDS, MESSAGE, begins_message, certain, first_of, read_header
from jaxengine.front.parsers.reasoning.blocks import ReasoningFormat, ReasoningParser, Split

SEPARATOR = "\n"
"""Between messages of one kind."""


@dataclass(frozen=True, slots=True)
class HarmonyFormat(ReasoningFormat):
    """The format. Structured answers and forced calls come behind one message of reasoning."""

    def opened_by(self, prompt: str) -> bool | None:
        """Nothing: every message says what it is."""
        return None

    def parser(self, opened: bool | None) -> HarmonyParser:
        """A parser for one sequence."""
        return HarmonyParser()


class HarmonyParser(ReasoningParser):
    """Splits messages by their headers; what is no message is content."""

    def __init__(self) -> None:
        super().__init__()
        self._kind = "header"
        """What comes: `header` or whatever stands in its place, `analysis`, `text` for the user, or `other`, left as it is."""
        self._wrote = {"analysis": False, "text": False}
        self._new = False

    def _advance(self, *, final: bool) -> Split:
        reasoning, content = "", ""
        while self._buffer:
            if self._kind == "header":
                head = self._take_header(final=final)
                if head is None:
                    break
                content += head
            kind = self._kind
            text = self._take_body(final=final)
            if kind == "analysis":
                reasoning += text
            else:
                content += text
            if self._kind != "header":
                break
        return Split(reasoning, content)

    def _take_header(self, *, final: bool) -> str | None:
        """Decide what follows, and what of the header is content; None while it cannot be told."""
        begins = begins_message(self._buffer)
        at = self._buffer.find(MESSAGE) if begins else -1
        if not final and (begins is None or (begins and at < 0)):
            return None
        header = None if at < 0 else read_header(self._buffer[:at])
        if header is None:
            self._kind = "other"
            begin = next((marker for marker in BEGINS if self._buffer.lstrip().startswith(marker)), "")
            size = self._buffer.index(begin) + len(begin)  # a header that is none does not begin again where it stands
        else:
            self._kind = "other" if header.recipient else "analysis" if header.channel == "analysis" else "text"
            size = at + len(MESSAGE)
        head, self._buffer = self._buffer[:size], self._buffer[size:]
        self._new = True
        return head if self._kind == "other" else ""

    def _take_body(self, *, final: bool) -> str:
        """What has come of a message; behind its end a header follows."""
        found = first_of(self._buffer, (*ENDS, *BEGINS))
        at = found[0] if found else len(self._buffer) if final else certain(self._buffer, (*ENDS, *BEGINS))
        text, self._buffer = self._buffer[:at], self._buffer[at:]
        end = found[1] if found and found[1] in ENDS else ""
        self._buffer = self._buffer[len(end) :]
        if self._kind == "other":
            text += end
        elif text:
            before = SEPARATOR if self._new and self._wrote[self._kind] else ""
            self._new, self._wrote[self._kind], text = False, True, before + text
        if found:
            self._kind = "header"
        return text
