"""Sequences that run and wait for pages of their prefix to come to the device, and how long they may."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jaxengine.contract.batch import FromHost
from jaxengine.host.scheduler.fetches import PATIENCE_S
from jaxengine.host.scheduler.sequence import Sequence


class Arrivals:
    """Who waits for which moves. A page belongs to one sequence, so a move says whose it is.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of_page: dict[tuple[int, int], Sequence] = {}
        self._left: dict[Sequence, dict[FromHost, None]] = {}
        self._until: dict[Sequence, float] = {}

    def __len__(self) -> int:
        return len(self._left)

    def expect(self, sequence: Sequence, moves: Iterable[FromHost]) -> None:
        """A sequence waits for these, at least one."""
        self._left[sequence] = dict.fromkeys(moves)
        self._of_page |= {(move.pool, move.page): sequence for move in self._left[sequence]}
        self._until[sequence] = self._clock() + PATIENCE_S

    def take(self, moves: Iterable[FromHost]) -> tuple[list[FromHost], list[Sequence]]:
        """Of moves that can be made those that somebody waits for, and the sequences that wait for no more."""
        wanted, complete = [], []
        for move in moves:
            sequence = self._of_page.get((move.pool, move.page))
            if sequence is None or move not in self._left[sequence]:
                continue  # its sequence has ended, or was told otherwise
            wanted.append(move)
            del self._of_page[move.pool, move.page], self._left[sequence][move]
            self._until[sequence] = self._clock() + PATIENCE_S
            if not self._left[sequence]:
                del self._left[sequence], self._until[sequence]
                complete.append(sequence)
        return wanted, complete

    def give_up(self, sequence: Sequence) -> list[FromHost]:
        """A sequence does not wait any more; the moves that are left of it."""
        moves = list(self._left.pop(sequence, ()))
        self._until.pop(sequence, None)
        for move in moves:
            del self._of_page[move.pool, move.page]
        return moves

    def late(self) -> list[Sequence]:
        """The sequences that have waited too long."""
        now = self._clock()
        return [sequence for sequence, until in self._until.items() if now >= until]
