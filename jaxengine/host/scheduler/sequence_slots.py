"""What sequences hold of the device beside pages: a slot, that of their adapter, and the embeddings of what they show."""

from __future__ import annotations

from jaxengine.errors import JaxEngineError
from jaxengine.host.adapters.slots import Access, AdapterSlots
from jaxengine.host.media.encoders import Encoders
from jaxengine.host.scheduler.sequence import Sequence


class SequenceSlots:
    """Slots 1 to `max_num_seqs`, one for each running sequence, and what these have of `adapters` and `encoders`.

    Args:
        adapters: slots of those that sequences run with; None where there are none.
        encoders: of what prompts show; None where there are none.
    """

    def __init__(self, max_num_seqs: int, *, adapters: AdapterSlots | None, encoders: Encoders | None) -> None:
        self.adapters = adapters
        self.encoders = encoders
        self._max_num_seqs = max_num_seqs
        self._free = list(range(max_num_seqs, 0, -1))

    def enter(self, sequence: Sequence) -> None:
        """A new sequence comes, which holds nothing yet."""
        request = sequence.group.request
        if request.media is not None and self.encoders is not None:
            sequence.shown = self.encoders.shown(request.media, request.request_id, request.cache_salt)
        if sequence.adapter is not None and self.adapters is not None:
            self.adapters.enter(sequence.adapter)

    def leave(self, sequence: Sequence) -> None:
        """It has ended."""
        if sequence.adapter is not None and self.adapters is not None:
            self.adapters.leave(sequence.adapter)

    def begin_round(self) -> None:
        """Before sequences ask again, the most urgent first."""
        if self.adapters is not None:
            self.adapters.begin_round()
        if self.encoders is not None:
            self.encoders.begin_round()

    def access(self, sequence: Sequence) -> Access | JaxEngineError:
        """Whether a sequence may run as far as its adapter goes, or why it never may."""
        if sequence.adapter is None or self.adapters is None:
            return Access.GRANTED
        return self.adapters.ask(sequence.adapter, overtaken=sequence.overtaken >= self._max_num_seqs)

    def may_take_embeddings(self, sequence: Sequence) -> bool:
        """Whether it is worth a look at what a sequence needs of the pool of embeddings, if anything."""
        return self.encoders is None or self.encoders.may_take(sequence.shown)

    def take_embeddings(self, sequence: Sequence) -> bool:
        """Hold what a sequence, which has its pages, needs of the pool; False, and nothing changed, where that is too full."""
        if sequence.shown is None or self.encoders is None:
            return True
        return self.encoders.take(sequence.shown, sequence.num_computed)

    def take(self, sequence: Sequence) -> None:
        """A sequence runs from now on, whose `access` is granted."""
        sequence.slot = self._free.pop()
        if sequence.adapter is not None and self.adapters is not None:
            sequence.adapter_slot = self.adapters.take(sequence.adapter)
            sequence.overtaken = 0

    def give_back(self, sequence: Sequence) -> None:
        """It does not run any more."""
        self._free.append(sequence.slot)
        if sequence.adapter is not None and self.adapters is not None:
            self.adapters.give_back(sequence.adapter)
        if sequence.shown is not None and self.encoders is not None:
            self.encoders.give_back(sequence.shown)
        sequence.slot = sequence.adapter_slot = 0

    def check_idle(self) -> None:
        """Prove that without any request nothing is held and nothing was lost.

        Raises:
            AssertionError: the accounts do not say so.
        """
        if len(self._free) != self._max_num_seqs:
            raise AssertionError(f"{self._max_num_seqs - len(self._free)} slots are held; none may be when idle")
        if self.adapters is not None:
            self.adapters.check()
        if self.encoders is not None:
            self.encoders.check()
            if self.encoders.pool.usage:
                raise AssertionError("embeddings are held; none may be when idle")
