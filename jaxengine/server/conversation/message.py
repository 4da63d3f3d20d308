"""What a model writes, read as a chat message: content, reasoning, tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jaxengine.server.endpoints.chat.protocol import ToolCallDelta


@dataclass(frozen=True, slots=True)
class MessageDelta:
    """What a message gained. `tool_calls` are fragments in the form of a stream's chunks."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


class MessageReader(Protocol):
    """Reads one sequence. However its text is cut into pieces, the deltas joined are the same."""

    @property
    def reasoning(self) -> str:
        """The reasoning read so far, told or not."""
        ...

    def feed(self, text: str, token_ids: Sequence[int]) -> MessageDelta:
        """Take the next piece of text and the ids that it came from."""
        ...

    def finish(self, reason: str) -> tuple[MessageDelta, str]:
        """Nothing more comes, for this reason: what was held back, and the message's finish reason."""
        ...
