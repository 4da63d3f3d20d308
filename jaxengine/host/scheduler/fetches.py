"""Sequences that neither run nor wait in line, while outer stores are asked for pages of theirs and bring them to the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import count

from jaxengine.contract.page_name import PageName
from jaxengine.contract.tiers import Ask
from jaxengine.host.scheduler.sequence import Sequence

ANSWER_S = 1.0
"""How long a sequence waits for an answer of outer stores."""
PATIENCE_S = 5.0
"""How long it waits without any page coming."""


@dataclass(slots=True)
class Fetch:
    """A question that a sequence waits for, or the pages that are `left` to come; and until when."""

    until: float
    number: int | None
    asked: tuple[PageName, ...]
    left: set[PageName]


class Fetches:
    """Who waits for what of outer stores.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._numbers = count()
        self._fetches: dict[Sequence, Fetch] = {}
        self._asking: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._fetches)

    @property
    def num_asking(self) -> int:
        """Sequences that wait for an answer; the others wait for pages."""
        return sum(fetch.number is not None for fetch in self._fetches.values())

    def ask(self, sequence: Sequence, names: Iterable[PageName]) -> Ask:
        """A sequence waits for an answer to this question."""
        question = Ask(next(self._numbers), tuple(names))
        self._fetches[sequence] = Fetch(self._clock() + ANSWER_S, question.number, question.names, set())
        self._asking[question.number] = sequence
        return question

    def answer(self, number: int, there: Iterable[bool]) -> tuple[Sequence, frozenset[PageName]] | None:
        """Who has asked this, and which pages there are; None: nobody waits for it any more."""
        sequence = self._asking.pop(number, None)
        if sequence is None:
            return None
        asked = self._fetches[sequence].asked
        return sequence, frozenset(name for name, found in zip(asked, there, strict=True) if found)

    def expect(self, sequence: Sequence, names: Collection[PageName]) -> None:
        """A sequence, whose question was answered, waits for these pages."""
        self._fetches[sequence] = Fetch(self._clock() + PATIENCE_S, None, (), set(names))

    def loaded(self, name: PageName) -> list[Sequence]:
        """The sequences that wait for nothing more, as this page has come or will not."""
        complete = []
        for sequence, fetch in self._fetches.items():
            if name in fetch.left:
                fetch.left.discard(name)
                fetch.until = self._clock() + PATIENCE_S
                if not fetch.left:
                    complete.append(sequence)
        return complete

    def give_up(self, sequence: Sequence) -> None:
        """A sequence does not wait any more."""
        fetch = self._fetches.pop(sequence, None)
        if fetch is not None and fetch.number is not None:
            self._asking.pop(fetch.number, None)

    @property
    def waiting(self) -> list[Sequence]:
        """Who waits for anything."""
        return list(self._fetches)

    def late(self) -> list[Sequence]:
        """The sequences that have waited too long."""
        if not self._fetches:
            return []
        now = self._clock()
        return [sequence for sequence, fetch in self._fetches.items() if now >= fetch.until]
