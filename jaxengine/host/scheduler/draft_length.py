"""How many drafts the sequences of a step carry, where the device makes them: as many as bring most tokens for the time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from buckets import Grid
from jaxengine.contract.draft_costs import DraftCosts
from jaxengine.contract.updates import SequenceUpdate

FORGETS = 0.998
"""What a step leaves of what was seen before it."""
AT_FIRST, AT_FIRST_OF = 4.0, 6.0
"""Before any draft was checked, as if so many of so many had been right. As what was seen is forgotten this counts again, so that
drafts which brought nothing are tried again after a while: a few steps in a thousand."""
BEGINS, GOES_ON = 1.15, 1.05
"""How many times the tokens for the time of a step without drafts they must promise, to begin and to go on. Promises rest on
measured times, which are not exact, and the host works more with drafts."""

MOST_KEPT = 4096
"""Numbers of rows and of drafters of which what steps take is kept."""


class DraftLength:
    """The drafts of a row in the next step, up to `most`.

    All drafts of the engine are counted together, by their place: how often one was right where those before it were. Times are
    those of the grid's buckets, and what drafts take beside them (`costs`).
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.costs = DraftCosts()
        self._drafts = False
        self._grid: Grid | None = None
        self._seconds: dict[tuple[int, int], list[float]] = {}
        self._checked = [AT_FIRST_OF] * most
        self._right = [AT_FIRST] * most

    def learn(self, updates: Iterable[SequenceUpdate]) -> None:
        """Take in what a step has brought."""
        self.forget()
        drafts = Counter((update.num_draft_tokens, update.num_accepted_tokens) for update in updates)
        for (num_drafts, num_right), times in drafts.items():
            self.note(num_drafts, num_right, times)

    def note(self, num_drafts: int, num_right: int, times: int = 1) -> None:
        """Of the drafts of so many rows so many each were right; of those behind a wrong one nothing is known."""
        for place in range(min(num_drafts, num_right + 1)):
            self._checked[place] += times
            self._right[place] += times * (place < num_right)

    def forget(self) -> None:
        """A step has passed."""
        for place in range(self.most):
            self._checked[place] = AT_FIRST_OF + FORGETS * (self._checked[place] - AT_FIRST_OF)
            self._right[place] = AT_FIRST + FORGETS * (self._right[place] - AT_FIRST)

    def gained(self, num_drafts: int) -> float:
        """The tokens that a row with so many drafts should bring."""
        tokens = passes = 1.0
        for place in range(num_drafts):
            passes *= self._right[place] / self._checked[place]
            tokens += passes
        return tokens

    def choose(self, grid: Grid, rows: int, *, drafters: int, num_prompts: int, max_tokens: int) -> int:
        """Drafts for each of the `drafters` among so many decoding rows, all others having none for as long as they run.

        Beside prompts they take at most half of what a step has beyond the rows. Prompts are drafted behind where it would pay
        as they decode, beside the rows that decode now.
        """
        room = max_tokens - rows - num_prompts
        if rows and num_prompts:
            room //= 2
        rows = min(rows + num_prompts, grid.max_rows)
        drafters = min(rows, drafters + num_prompts)
        if not drafters:
            return 0
        if grid is not self._grid or len(self._seconds) == MOST_KEPT:
            self._grid = grid
            self._seconds.clear()
        seconds = self._seconds.get((rows, drafters))
        if seconds is None:
            seconds = [self._step_seconds(grid, rows, count, drafters * count) for count in range(self.most + 1)]
            self._seconds[rows, drafters] = seconds
        most = min(self.most, room // drafters)
        plain = rows / seconds[0]
        promises = [(rows + drafters * (self.gained(count) - 1)) / seconds[count] for count in range(1, most + 1)]
        best = max(promises, default=0.0)
        self._drafts = best > plain * (GOES_ON if self._drafts else BEGINS)
        return 1 + promises.index(best) if self._drafts else 0

    def _step_seconds(self, grid: Grid, rows: int, num_drafts: int, more: int) -> float:
        """Of a step in which so many rows decode, with so many drafts each or `more` in all; without end if it fits no bucket."""
        fitting = [bucket for bucket in grid.buckets if bucket.batch >= rows and bucket.tokens >= rows + more]
        if not fitting:
            return math.inf
        bucket = min(reversed(fitting), key=grid.costs.__getitem__)  # of equal ones the smallest, as a step takes
        sampling = self.costs.sampling(rows + more) - self.costs.sampling(bucket.batch)
        cost = grid.costs[bucket]
        return max(cost / 2, cost + sampling) + (self.costs.drafting(bucket) if num_drafts else 0.0)
