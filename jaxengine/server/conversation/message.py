"""What a model writes, read as a message: content, reasoning, tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxengine.contract.outputs import PositionLogprobs
from jaxengine.server.generation.versions import TokensOfVersion


class ToolCall(NamedTuple):
    """The `number`-th call of a message: a function's name, and its arguments as JSON text."""

    number: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class MessageDelta:
    """What a message gained: reasoning, then content, then calls."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


class Gain(NamedTuple):
    """What the `message`-th of an answer's messages gained by one output.

    `token_ids` and `logprobs` are those since the last gain that had something to tell; they stand with its first delta, the
    finish reason with its last. There is a finish reason where the message has ended, perhaps without a delta; then
    `weight_versions` tell which weights made its tokens.
    """

    message: int
    begins: bool
    deltas: Sequence[MessageDelta] = ()
    token_ids: Sequence[int] = ()
    logprobs: Sequence[PositionLogprobs] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: Sequence[TokensOfVersion] = ()
