"""One step after the other: which of the running sequences it is of, and whether prompts or decoding rows come first."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items

from buckets import Grid
from jaxengine.host.scheduler.assembly import Assembly, assemble
from jaxengine.host.scheduler.draft_length import DraftLength
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.policy import prompt_shares
from jaxengine.host.scheduler.sequence import Sequence
from jaxengine.host.scheduler.steady import Steady
from jaxengine.host.scheduler.turns import take_turns


class Assembler:
    """Assembles steps of `grid`, each with regard to the one before it.

    Decoding rows come first, but for a step that is left to prompts: where they crawled in the step before, with buckets like
    Gaudi's, of which the large ones have few rows; or where one step of their own is enough for all of them. Decoding rows never
    wait for the latter twice in a row.

    Args:
        turns: steps that are computed at once; sequences take turns to be in one.
        draft_length: how many drafts rows carry, where the device makes them.
    """

    def __init__(self, limits: SchedulerLimits, grid: Grid, *, turns: int, draft_length: DraftLength | None) -> None:
        self.grid = grid
        self._limits = limits
        self._turns = turns
        self._draft_length = draft_length
        self._prompts_crawl = False  # in the last step
        self._decoding_waited = False  # for prompts, in the last step

    @property
    def token_s(self) -> float:
        """The least that a prompt's token costs."""
        return min(cost / bucket.tokens for bucket, cost in self.grid.costs.items())

    def assemble(self, running: Items[Sequence], steady: Steady, *, others_wait: bool, number: int) -> Assembly:
        """The rows of the step of this number; none where there is nothing to compute before a result comes back.

        Args:
            running: the sequences that hold pages.
            steady: those of them that are in every step.
            others_wait: there are sequences behind them.
            number: of the step.
        """
        running = take_turns(running, self._turns, number=number)
        self._decoding_waited = self._prompts_crawl or (
            not self._decoding_waited
            and not others_wait  # with more to come nobody decodes alone in the end
            and len(steady.rows) < len(running)  # else nobody has a prompt, as in most steps
            and _prompts_fit_alone(running, self.grid, self._limits)
        )
        if self._decoding_waited:
            steady.leave_all()
        step = assemble(
            running,
            self.grid,
            self._limits,
            steady=steady,
            prompts_first=self._decoding_waited,
            draft_length=self._draft_length,
        )
        self._prompts_crawl = step.crawls
        if self._turns > 1:
            for sequence in (*step.plain, *step.drafted, *step.known):
                sequence.last_step = number
        return step


def _prompts_fit_alone(running: Iterable[Sequence], grid: Grid, limits: SchedulerLimits) -> bool:
    """Whether all prompts can be done in a step of their own, and not beside the rows that decode: a few of their tokens would be
    left for more steps, whose sequences fall behind and decode with few others in the end."""
    left, others = list[int](), 0
    for sequence in running:
        if not sequence.steady and not sequence.waits and (tokens := sequence.prompt_end - sequence.num_computed) > 0:
            if sequence.scores:
                return False
            left.append(tokens)
        else:
            others += 1
    if not left or prompt_shares(left, threshold=limits.prompt_threshold) != left:
        return False
    return sum(left) <= min(limits.budget(beside=0), grid.max_tokens) < sum(left) + others
