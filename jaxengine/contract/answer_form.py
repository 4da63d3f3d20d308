"""The form of an answer as a server needs it: what a user asks of the output, and what stands around the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from jaxengine.contract.structured_outputs import StructuredOutputsParams


class Thinking(NamedTuple):
    """A block before the constrained text: its markers, and whether the prompt has opened it already.

    A block that the prompt opened must be closed; otherwise the model may leave it out. `answer` stands between the block and
    the constrained text.
    """

    begin: str
    end: str
    opened: bool
    answer: str = ""


@dataclass(frozen=True, kw_only=True)
class AnswerForm(StructuredOutputsParams):
    """A constraint, with reasoning before it and tool calls in its place or in the middle of free text.

    Args:
        thinking: text before the output proper that is left free.
        instead: a Lark grammar of what may come in place of the output proper, such as tool calls.
        markers: texts that the rules `marker_0`, `marker_1` ... of `grammar` and `instead` stand for: a special token where the
            model has one of that name.
        triggered: text is free until the first marker, behind which `grammar` begins (its own `marker_0` is empty then); and
            again behind what it describes.
    """

    thinking: Thinking | None = None
    instead: str | None = None
    markers: tuple[str, ...] = ()
    triggered: bool = False

    @classmethod
    def of(cls, params: StructuredOutputsParams, **around: Any) -> Self:
        """What `params` ask, with what stands `around` it."""
        return cls(**{**vars(params), **around})
