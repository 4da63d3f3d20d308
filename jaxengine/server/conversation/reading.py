"""A chat message read with the parsers of its model: reasoning first, then content and tool calls."""

from __future__ import annotations

import secrets
import string
import uuid
from dataclasses import dataclass, field, replace

from jaxengine.front.parsers.calls import Call
from jaxengine.front.parsers.reasoning import ReasoningParser
from jaxengine.front.parsers.reasoning.blocks import Split
from jaxengine.front.parsers.regions import Piece, RegionParser
from jaxengine.server.conversation.message import MessageDelta, ToolCall

LETTERS = string.ascii_letters + string.digits


@dataclass(kw_only=True, eq=False)
class ChatReader:
    """Reads one sequence. However its text is cut into pieces, the deltas joined are the same.

    Args:
        reasoning_parser: splits reasoning off; None when the model's is not told apart.
        tools: finds calls; None when they are not looked for.
        several: whether calls after the first are told.
        ends_as_call: whether an answer with calls ends with `tool_calls`, not `stop`.
        forced: whether there is nothing but calls: one that is cut is told as far as it came.
        tell_reasoning: whether reasoning is told at all.
        short_ids: whether call ids have nine letters and digits.

    Attributes:
        reasoning: what has been read of it, told or not.
    """

    reasoning_parser: ReasoningParser | None
    tools: RegionParser | None
    several: bool
    ends_as_call: bool
    forced: bool
    tell_reasoning: bool
    short_ids: bool
    reasoning: str = field(default="", init=False)
    _num_calls: int = field(default=0, init=False)

    @property
    def answer_at(self) -> int | None:
        """Where in the text that is read the answer begins, behind reasoning; None while it has not."""
        return 0 if self.reasoning_parser is None else self.reasoning_parser.answer_at

    def feed(self, text: str) -> list[MessageDelta]:
        """Take the next piece of text; what the message gained, in order."""
        split = Split(content=text) if self.reasoning_parser is None else self.reasoning_parser.feed(text)
        return self._deltas(split, [split.content] if self.tools is None else self.tools.feed(split.content))

    def finish(self, reason: str) -> tuple[list[MessageDelta], str]:
        """Nothing more comes, for this reason: what was held back, and the message's finish reason."""
        split = Split() if self.reasoning_parser is None else self.reasoning_parser.finish()
        pieces: list[Piece] = [split.content]
        if self.tools is not None:
            pieces = self.tools.feed(split.content) + self.tools.finish(cut=self.forced and reason != "stop")
        deltas = self._deltas(split, pieces)
        calls = reason == "stop" and self._num_calls > 0 and self.ends_as_call
        return deltas, "tool_calls" if calls else reason

    def _deltas(self, split: Split, pieces: list[Piece]) -> list[MessageDelta]:
        """The reasoning and the pieces behind it. Content that follows a call is another delta."""
        self.reasoning += split.reasoning
        deltas = [MessageDelta(reasoning=split.reasoning if self.tell_reasoning else "")]
        for piece in pieces:
            last = deltas[-1]
            if isinstance(piece, Call):
                if (call := self._call(piece)) is not None:
                    deltas[-1] = replace(last, tool_calls=(*last.tool_calls, call))
            elif last.tool_calls:
                deltas.append(MessageDelta(content=piece))
            else:
                deltas[-1] = replace(last, content=last.content + piece)
        return [delta for delta in deltas if delta]

    def _call(self, call: Call) -> ToolCall | None:
        index = self._num_calls
        if index > 0 and not self.several:
            return None
        self._num_calls += 1
        made = "".join(secrets.choice(LETTERS) for _ in range(9)) if self.short_ids else f"call_{uuid.uuid4().hex}"
        return ToolCall(index, call.id or made, call.name, call.arguments)
