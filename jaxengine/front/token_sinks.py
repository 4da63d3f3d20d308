"""Tokens that many sequences gained together go to where each keeps its own, without an update for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from jaxengine.contract.step_updates import Gained, Part, Roster
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.front.postprocess import Progress

Owner = TypeVar("Owner")

NOBODY = Roster([], [], [])


class TokenSinks(Generic[Owner]):
    """Looks up where the tokens of a roster go, with its second step: for one that lasts for a single step updates cost less.

    While a roster lasts an engine tells nothing else of its sequences but their last update. But whoever is between has tokens
    become updates where it looks at each: what came so is taken before more is put beside it.

    Args:
        find: whoever waits for a request, and its progress, if that has taken all updates that came.
    """

    _missing: list[int]  # rows

    def __init__(self, find: Callable[[str], tuple[Owner, Progress] | None]) -> None:
        self._find = find
        self._begin(NOBODY)

    def take(self, part: Part) -> tuple[list[Owner], Sequence[SequenceUpdate]]:
        """Put tokens where they go.

        Returns:
            Who has something to tell, and the updates that have to be looked at.
        """
        if isinstance(part, Gained):
            return self._take_gained(part)
        if any(update.finish_reason is None for update in part):
            self._begin(NOBODY)
        return [], part

    def _take_gained(self, gained: Gained) -> tuple[list[Owner], list[SequenceUpdate]]:
        if gained.roster is not self._roster:
            self._begin(gained.roster)
            return [], gained.updates()
        left: list[SequenceUpdate] = []
        self._missing = [row for row in self._missing if not self._look_up(row)]
        if self._missing:
            rows = np.arange(len(gained.tokens)) if gained.rows is None else gained.rows
            missing = np.isin(rows, self._missing)
            left = gained.part(np.flatnonzero(missing)).updates()
            gained = gained.part(np.flatnonzero(~missing))
        for append, token in zip(gained.of_rows(self._appends), gained.tokens.tolist(), strict=True):
            append(token)
        if not self._any_tells:
            return [], left
        return [owner for owner in gained.of_rows(self._tellers) if owner is not None], left

    def _begin(self, roster: Roster) -> None:
        self._roster = roster
        self._missing = [*range(len(roster))]
        self._appends: list[Callable[[int], None]] = [list[int]().append] * len(roster)
        self._tellers: list[Owner | None] = [None] * len(roster)
        self._any_tells: bool = False

    def _look_up(self, row: int) -> bool:
        """Find out where the tokens of a row go, if updates are not wanted in their place."""
        found = self._find(self._roster.request_ids[row])
        if found is None:
            return False
        owner, progress = found
        sink = progress.sink(self._roster.indices[row], self._roster.admissions[row])
        if sink is None:
            return False
        self._appends[row] = sink.append
        if progress.tells_each:
            self._tellers[row] = owner
            self._any_tells = True
        return True
