"""The sequences that wait, the most urgent first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Sequenced

from jaxengine.host.scheduler.policy import Urgency
from jaxengine.host.scheduler.sequence import Sequence, State


class WaitingQueue:
    """A heap by urgency. A sequence that finished while it waited (aborted) is dropped when it comes to the top.

    `num_tokens` are the tokens that all who wait had when they came: one that was preempted may still gain some.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Urgency, Sequence]] = []
        self._size = 0
        self.num_tokens = 0

    def __len__(self) -> int:
        return self._size

    def push(self, sequence: Sequence) -> None:
        """Add a sequence; a preempted one comes back to where its urgency puts it, before all later ones."""
        heapq.heappush(self._heap, (sequence.urgency, sequence))
        self._size += 1
        sequence.num_queued = sequence.num_tokens
        self.num_tokens += sequence.num_queued

    def first(self) -> Sequence | None:
        """The most urgent one, which stays in the queue; None when nothing waits."""
        while self._heap and self._heap[0][1].state is not State.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> None:
        """Take away what `first` returned."""
        _, sequence = heapq.heappop(self._heap)
        self.discard(sequence)

    def discard(self, sequence: Sequence) -> None:
        """Count one waiting sequence as gone: its state is no longer WAITING."""
        self._size -= 1
        self.num_tokens -= sequence.num_queued

    def remove(self, sequence: Sequence) -> None:
        """Take away a sequence that waits, wherever it stands."""
        self._heap = [entry for entry in self._heap if entry[1] is not sequence]
        heapq.heapify(self._heap)
        self.discard(sequence)

    def begin(self, share: str) -> None:
        """A request of this share comes, which makes no difference here."""

    def charge(self, share: str, tokens: float) -> None:
        """A share was served so many tokens, which makes no difference here."""

    def rank(self, running: list[Sequence]) -> None:
        """Bring the running sequences into order, where urgencies change while they run."""

    def gives_way(self, first: Sequence, running: Sequenced[Sequence]) -> Sequence | None:
        """Who is to give up its place for `first`, for which there is none: nobody."""
        return None
