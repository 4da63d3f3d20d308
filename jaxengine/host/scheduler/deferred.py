"""The waiting sequences that a round of admission passes over, and why."""

from __future__ import annotations

from jaxengine.host.scheduler.sequence import Sequence


class Deferred:
    """Sequences that give way to those behind them, to wait again when the round is over.

    Attributes:
        sequences: all of them, in the order in which they were met.
    """

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self._without_slot: list[Sequence] = []
        self._num_without_embeddings = 0

    def add(self, sequence: Sequence) -> None:
        """One that waits for what another computes, or whose adapter cannot be read."""
        self.sequences.append(sequence)

    def add_without_slot(self, sequence: Sequence) -> None:
        """One whose adapter has no slot now."""
        self.sequences.append(sequence)
        self._without_slot.append(sequence)

    def add_without_embeddings(self, sequence: Sequence) -> None:
        """One for whose items the pool of embeddings has no room now."""
        self.sequences.append(sequence)
        self._num_without_embeddings += 1

    def note_overtaken(self) -> None:
        """Another was let run: those without a slot are overtaken once more."""
        for sequence in self._without_slot:
            sequence.overtaken += 1

    @property
    def reason(self) -> str:
        """Why sequences still wait. One reason is told: pages of another go before embeddings, and these before slots."""
        if not self.sequences:
            return "max_num_seqs"
        if len(self.sequences) > len(self._without_slot) + self._num_without_embeddings:
            return "prefix_cache"
        return "encoder_cache" if self._num_without_embeddings else "max_loras"
