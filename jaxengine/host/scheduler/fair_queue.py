"""Fair shares: of those who wait, whoever has been served least comes first (the virtual token counter of arXiv 2401.00588)."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence as Sequenced

from jaxengine.host.scheduler.sequence import Sequence
from jaxengine.host.scheduler.waiting import WaitingQueue

OUTPUT_WEIGHT = 2
"""What a token of output counts, in tokens of prompts: it takes a place in a step of its own."""

FORGETTING = 256
"""Shares that are remembered though nothing of theirs waits, before those are looked for that need not be."""


class FairQueue(WaitingQueue):
    """A queue for each share, and what each share was served: prompt tokens when a sequence is admitted, output as it comes.

    Within a share it is first come, first served. A share that begins to wait is put beside the least served one that waits
    already, or else beside the one that was admitted last: to have asked for nothing saves nothing up.

    The urgency of a sequence is `(served, number, index)`, of which the first is what its share has been served as of the last
    `rank`, or when it was admitted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[str, WaitingQueue] = {}
        self._served: dict[str, float] = {}
        self._order: list[tuple[float, int, str]] = []
        self._first = self._last = ""

    def served(self, share: str) -> float:
        """Tokens that a share was served or credited."""
        return self._served.get(share, 0.0)

    def charge(self, share: str, tokens: float) -> None:
        """A share was served so many tokens more."""
        self._served[share] = self.served(share) + tokens

    def begin(self, share: str) -> None:
        """A request of this share comes: if nothing of it waits it is put beside those that do."""
        if self._queues.get(share):
            return
        first = self.first()
        least = self.served(self._last) if first is None else first.urgency[0]
        self._served[share] = max(self.served(share), least)

    def push(self, sequence: Sequence) -> None:
        """Add a sequence; a preempted one comes back before all later ones of its share."""
        share = sequence.group.request.share
        queue = self._queues.get(share)
        if queue is None:
            queue = self._queues[share] = WaitingQueue()
            heapq.heappush(self._order, (self.served(share), sequence.group.number, share))
        sequence.urgency = (0.0, *sequence.urgency[1:])
        queue.push(sequence)
        self._size += 1
        self.num_tokens += sequence.num_queued

    def first(self) -> Sequence | None:
        """The next of the least served share that waits; it stays in the queue."""
        order = self._order
        while order:
            served, number, share = order[0]
            found = self._queues[share].first()
            if found is None:
                heapq.heappop(order)
                del self._queues[share]
                self._forget()
            elif (current := self.served(share)) > served:  # it was served since it came to its place
                heapq.heapreplace(order, (current, number, share))
            else:
                found.urgency = (current, *found.urgency[1:])
                self._first = share
                return found
        return None

    def pop(self) -> None:
        """Take away what `first` returned."""
        queue = self._queues[self._first]
        sequence = queue.first()
        assert sequence is not None
        queue.pop()
        self._last = self._first
        super().discard(sequence)

    def discard(self, sequence: Sequence) -> None:
        """Count one waiting sequence as gone: its state is no longer WAITING."""
        self._queues[sequence.group.request.share].discard(sequence)
        super().discard(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take away a sequence that waits, wherever it stands."""
        self._queues[sequence.group.request.share].remove(sequence)
        super().discard(sequence)

    def rank(self, running: list[Sequence]) -> None:
        """Bring the running sequences into order: those of the least served share first."""
        for sequence in running:
            sequence.urgency = (self.served(sequence.group.request.share), *sequence.urgency[1:])
        running.sort(key=lambda sequence: sequence.urgency)

    def gives_way(self, first: Sequence, running: Sequenced[Sequence]) -> Sequence | None:
        """Who is to give up its place for `first`, of whose share nothing runs: the least urgent of a share that has several."""
        counts = Counter(sequence.group.request.share for sequence in running)
        if counts[first.group.request.share]:
            return None
        for sequence in reversed(running):
            if sequence.urgency <= first.urgency:
                return None
            if counts[sequence.group.request.share] > 1:
                return sequence
        return None

    def _forget(self) -> None:
        """Let go of shares that would be credited as much or more when they come back."""
        if len(self._served) > FORGETTING + 2 * len(self._queues):
            last = self.served(self._last)
            least = min(last, self._order[0][0]) if self._order else last
            kept = {share for share, served in self._served.items() if served > least}
            self._served = {share: self.served(share) for share in {*kept, *self._queues, self._last}}
