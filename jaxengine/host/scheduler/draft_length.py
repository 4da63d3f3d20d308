"""How many drafts the sequences of a step carry, where the device makes them: as many as bring most tokens for the time."""

from __future__ import annotations

from collections.abc import Mapping

from buckets import Bucket, Grid

FORGETS = 0.995
"""What a step leaves of what was seen before it."""
AT_FIRST, AT_FIRST_OF = 4.0, 6.0
"""Before any draft was checked, as if so many of so many had been right. As what was seen is forgotten this counts again, so that
drafts which brought nothing are tried again after a while."""


class DraftLength:
    """The drafts of a row in the next step, up to `most`.

    All drafts of the engine are counted together, by their place: how often one was right where those before it were. Times are
    those of the grid's buckets, and what drafting behind a step of a bucket takes (`draft_s`).
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.draft_s: Mapping[Bucket, float] = {}
        self._checked = [AT_FIRST_OF] * most
        self._right = [AT_FIRST] * most

    def note(self, num_drafts: int, num_right: int) -> None:
        """Of the drafts of a row so many were right; of those behind a wrong one nothing is known."""
        for place in range(min(num_drafts, num_right + 1)):
            self._checked[place] += 1
            self._right[place] += place < num_right

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

        Beside prompts they take at most half of what a step has beyond the rows, and all rows count as drafters: those of the
        prompts will be, if they are drafted behind now. Prompts alone are drafted behind where it would pay as they decode.
        """
        if not rows:
            rows, num_prompts, drafters = num_prompts, 0, num_prompts
        drafters = rows if num_prompts else drafters
        if not drafters:
            return 0
        room = max_tokens - rows - num_prompts
        if num_prompts:
            room //= 2

        def promise(num_drafts: int) -> float:
            more = drafters * num_drafts
            costs = [
                cost + (self.draft_s.get(bucket, 0.0) if num_drafts else 0.0)
                for bucket, cost in grid.costs.items()
                if bucket.batch >= rows and bucket.tokens >= rows + more
            ]
            gained = rows + drafters * (self.gained(num_drafts) - 1)
            return gained / min(costs) if costs and more <= room else 0.0

        return max(range(self.most + 1), key=promise)
