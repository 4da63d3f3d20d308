"""What may follow a sequence's last token, looked up on the host: what is proposed, and how often it was right."""

from __future__ import annotations

from jaxengine.contract.arrays import Int32s
from jaxengine.host.scheduler.ngram import propose
from jaxengine.options.speculation import NgramSpeculation

REST, DOUBLINGS = 8, 5
"""Tokens without proposals after a draft of which nothing was right, and how often that doubles."""


class Drafts:
    """The drafts of one sequence.

    `proposal` may stand behind its last token in the next step.
    """

    __slots__ = ("_misses", "_num_checked", "_num_right", "_rests_until", "_speculation", "proposal")

    def __init__(self, speculation: NgramSpeculation) -> None:
        self.proposal: tuple[int, ...] = ()
        self._speculation = speculation
        self._num_checked = self._num_right = 0
        self._misses = 0  # drafts in a row of which nothing was right, or that there was no room for
        self._rests_until = 0  # tokens before which nothing is proposed

    @property
    def hits(self) -> float:
        """The share of these drafts that will be right, going by those that were checked."""
        return (1 + self._num_right) / (2 + self._num_checked)

    def propose(self, tokens: Int32s, *, room: int) -> None:
        """Propose what may follow `tokens`, at most so many as there is room for; nothing while the sequence rests."""
        rests = len(tokens) < self._rests_until
        self.proposal = () if rests else propose(tokens, self._speculation)[:room]

    def note(self, num_drafts: int, num_right: int, *, length: int) -> None:
        """Of so many drafts so many were right; the sequence had `length` tokens when they were proposed."""
        self._num_checked += num_drafts
        self._num_right += num_right
        if num_right:
            self._misses = 0
        else:
            self.rest(length)

    def rest(self, length: int) -> None:
        """Propose nothing for a while, the longer the oftener this happens: a proposal costs a step, which it does not join."""
        self.proposal = ()
        self._rests_until = length + (REST << min(self._misses, DOUBLINGS))
        self._misses += 1
