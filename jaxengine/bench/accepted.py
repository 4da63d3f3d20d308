"""How many tokens of drafts were right, by their position."""

from __future__ import annotations

from jaxengine.contract.metrics import FinishedRequest, FinishedSequence, StatsListener, StepStats


class AcceptedDrafts(StatsListener):
    """Listens to an engine's steps and sums up what became of drafts in those in which no prompt ended.

    `steps` are those that brought tokens, `rows` the rows of them that did, `drafts` those that were checked, and
    `accepted_at[i]` those of them whose token `i` was right.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what was counted."""
        self.steps = self.rows = self.drafts = 0
        self.accepted_at: list[int] = []

    @property
    def a_step(self) -> list[float]:
        """Tokens that were right in a step of all its rows, by position."""
        return [round(accepted / self.steps, 3) for accepted in self.accepted_at]

    def on_step(self, stats: StepStats) -> None:
        """Count one."""
        if stats.first_tokens or not stats.num_generated_tokens:
            return
        found = stats.drafts
        self.steps += 1
        self.rows += stats.num_generated_tokens - found.num_accepted_tokens
        self.drafts += found.num_drafts
        self.accepted_at += [0] * (len(found.accepted_at) - len(self.accepted_at))
        for position, accepted in enumerate(found.accepted_at):
            self.accepted_at[position] += accepted

    def on_finished(self, sequence: FinishedSequence, request: FinishedRequest | None) -> None:
        """Nothing to count."""

    def on_lost(self, finish_reason: str, num_sequences: int) -> None:
        """Nothing to count."""
