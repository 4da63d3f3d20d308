"""A sequence while it lives. Mutable, and seen by the scheduler only."""

from __future__ import annotations

from enum import Enum

import numpy as np

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.rows import Pool, Want, sample
from jaxengine.host.kvcache.prefix import Chain
from jaxengine.host.media.shown import NEVER, Shown
from jaxengine.host.scheduler.drafts import Drafts
from jaxengine.host.scheduler.group import Group
from jaxengine.host.scheduler.policy import Urgency
from jaxengine.host.scheduler.scoring import Scoring
from jaxengine.host.scheduler.slot_sampling import SlotSampling
from jaxengine.options.speculation import DraftSpeculation, NgramSpeculation, Speculation

NO_PAGES: Int32s = np.zeros((1, 0), np.int32)
ROOM = 64
"""Tokens of output that a sequence's buffer has room for at first; it doubles when full."""
POOLS = (Pool(), Pool(each=True))


class State(Enum):
    """Where a sequence is: it holds pages and a slot only while RUNNING. A FETCHING one waits for pages from outer stores, a
    PAUSED one for nothing but to be let go on."""

    WAITING = "waiting"
    FETCHING = "fetching"
    PAUSED = "paused"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """One prompt and the output generated from it.

        position   0                  num_computed        num_tokens    length
                   |---- in pages ----|---- to compute ----|. . . . . . |  next token goes here
                   |------- prompt -------|---- output ----| in flight  |
                                     num_prompt

    Two clocks run here. What is *planned* is what launched steps do: `num_computed` positions, `length` tokens, of which steps in
    flight sample the last `pending`. What is *known* has come back: `num_tokens`. The scheduler plans ahead of what is known.
    Of drafts in flight it assumes that all are right: `ahead` of the tokens, and of the positions, are there only if they are,
    and are taken back when it is known.

    A sequence that decodes has one token to compute, which may be known to the device alone. Four things bound a row of more:

    - while prompt log probabilities are wanted, those that have been asked for (`scoring`) are not asked for again;
    - in deterministic mode `pinned_end` is where rows of several tokens end and rows of one begin, so that one and the same
      kernel computes a position always;
    - where layers keep states a row ends at `snapshot_end`, for a copy of them that others can begin from;
    - with `drafts` that are looked up here nothing is planned while some are in flight, because they follow a token that is not
      known; with a proposal of what may follow, nothing until all its tokens are.

    A sequence is `plain` if its rows, while its output grows, are asked for a token each and nothing else. The prompt of one that
    is `whole` is one row.

    Drafts that the device makes stand there: `offered` says how many it has for the sequence after the steps that were launched,
    -1 before it sampled anything in this slot. It has `lapsed` with a step that did not draft: the draft model has not seen
    its tokens, and none are made for it while it runs. `guesses` are those that the host was told of, as masks depend on them.

    One that is `steady` is in every step with a row of one token. What it says of itself is behind until it is settled
    (`steady.py`).

    `last_step` is the number of the step that it was in last, where sequences take turns.

    `pages` are the ledger's for positions up to `covered_end`, into which the sequence may write: all its tokens, or where the
    model has windows those of the next step; with `publishes_at` tokens another page may be offered to others. `slot` is its
    place on the device and `adapter_slot` that of its adapter; until its first row there `begins`. `shown` is what its prompt
    shows, where it does. While it is `arriving` pages
    of its prefix come from another tier. With `from_host` off it takes none from there, as it has waited for some in vain; with
    `from_outer` it has not asked outer stores yet.
    """

    __slots__ = (
        "_tokens",
        "adapter",
        "adapter_slot",
        "admission",
        "ahead",
        "arriving",
        "begins",
        "chain",
        "covered_end",
        "drafts",
        "ends",
        "error_behind",
        "from_host",
        "from_outer",
        "grammar",
        "grammar_error",
        "group",
        "guesses",
        "index",
        "lapsed",
        "last_step",
        "max_length",
        "max_offered",
        "num_computed",
        "num_prompt",
        "num_queued",
        "num_tokens",
        "offered",
        "overtaken",
        "pages",
        "pending",
        "pinned_end",
        "plain",
        "pools",
        "publishes_at",
        "request_id",
        "sampling",
        "scoring",
        "sequence_id",
        "shown",
        "slot",
        "snapshot_end",
        "state",
        "steady",
        "urgency",
        "whole",
    )

    def __init__(
        self,
        group: Group,
        *,
        index: int,
        sequence_id: int,
        urgency: Urgency,
        deterministic: bool,
        speculation: Speculation | None,
        chain: Chain,
    ) -> None:
        request = group.request
        prompt, history = request.given_token_ids, request.history_of(index)
        known = (*prompt, *history.token_ids)
        self.group = group
        self.request_id = group.request_id
        self.ends = group.ends
        self.index = index
        self.sequence_id = sequence_id
        self.urgency = urgency
        self.chain = chain
        may_end = not request.sampling.ignore_eos
        self.grammar = None if group.grammar is None else group.grammar.start(may_end=may_end)
        self.grammar_error: str | None = None  # why it cannot go on, if so many drafts under way are right
        self.error_behind = 0
        self.sampling = SlotSampling(request, index, mask=group.mask)
        pooling = request.pooling
        self.pools = None if pooling is None else pooling.align or POOLS[pooling.each]
        self.whole = pooling is not None and pooling.whole
        samples = self.pools is None
        looks_up = samples and not self.sampling.mask_changes
        self.drafts = Drafts(speculation) if looks_up and isinstance(speculation, NgramSpeculation) else None
        self.max_offered = speculation.num_tokens if samples and isinstance(speculation, DraftSpeculation) else 0
        self.guesses: tuple[int, ...] = ()
        self.lapsed = False
        self.offered = -1
        self.ahead = 0
        self.plain = not (self.pools or self.drafts or self.max_offered or self.sampling.mask_changes)
        self.num_prompt, self.num_tokens = len(prompt), len(known)
        self._tokens: Int32s = np.empty(len(known) + min(group.max_tokens, ROOM), np.int32)
        self._tokens[: len(known)] = known
        self.max_length = len(prompt) + group.max_tokens
        is_scored = request.sampling.prompt_logprobs is not None and index == 0 and len(prompt) > 1
        self.scoring = Scoring(len(prompt), asked=history.num_prompt_logprobs) if is_scored else None
        # A prompt that is scored goes in rows of one altogether: how many places may be kept would cut it anywhere.
        rows_end = 0 if is_scored else len(prompt)
        self.pinned_end: int | None = rows_end if deterministic else None
        self.admission = history.admission
        self.num_queued = 0  # tokens when it began to wait
        self.pending = 0
        self.last_step = 0
        self.slot = 0
        self.adapter = request.adapter
        self.adapter_slot = 0
        self.overtaken = 0  # by sequences that were let run while its adapter had no slot
        self.begins = self.steady = False
        self.shown: Shown | None = None
        self.state = State.WAITING
        self.from_host = self.from_outer = True
        self.forget_pages()

    @property
    def tokens(self) -> Int32s:
        """Prompt and output so far, as a view that later tokens do not change."""
        return self._tokens[: self.num_tokens]

    @property
    def num_output(self) -> int:
        """Output tokens that are known."""
        return self.num_tokens - self.num_prompt

    @property
    def findable(self) -> Int32s:
        """The tokens whose pages others may find, and may wait for: in deterministic mode those before `pinned_end`.

        Others compute those in rows of several tokens too, and the later ones in rows of one.
        """
        return self.tokens if self.pinned_end is None else self._tokens[: min(self.num_tokens, self.pinned_end)]

    @property
    def length(self) -> int:
        """Tokens, those that steps in flight sample included, as if all drafts were right."""
        return self.num_tokens + self.pending + self.ahead

    @property
    def least_computed(self) -> int:
        """Positions that launched steps compute, whatever becomes of drafts."""
        return self.num_computed - self.ahead

    @property
    def next_drafts(self) -> int:
        """Drafts that may stand behind the last token in the next step: proposed here, or made by the device."""
        if self.drafts is not None:
            return len(self.drafts.proposal)
        return max(0, min(self.offered, self.max_length - self.length - 1))

    @property
    def waits(self) -> bool:
        """Whether nothing can be planned before results come back.

        Its pages are not there yet, or what is shown at its next place is not encoded, or, where that may not decide where rows
        end, anywhere; it has all its tokens, or nobody knows how many, or what is proposed does not follow its last token, which
        is not known.
        """
        if self.arriving:
            return True
        shown, uncut = self.shown, self.whole or self.pinned_end is not None
        if shown is not None and (end := shown.ready_end) < NEVER and (uncut or end <= self.num_computed):
            return True
        pending, drafts = self.pending, self.drafts
        if self.num_tokens + pending + self.ahead >= self.max_length:
            return True
        return pending > 0 and drafts is not None and bool(self.ahead or drafts.proposal)

    @property
    def row_end(self) -> int:
        """How far a row of several tokens may reach from `num_computed`, going by what is known and encoded."""
        end = min(self.num_tokens, self.snapshot_end)
        if self.shown is not None:
            end = min(end, self.shown.ready_end)
        if self.pinned_end is not None:
            end = min(end, self.pinned_end)
        scoring = self.scoring
        if scoring is not None and not scoring.is_done and self.num_computed < scoring.asked:
            return min(end, scoring.asked)
        return end

    @property
    def prompt_end(self) -> int:
        """How far a row of several tokens may reach with the pages that it has, where items that see each other stay whole."""
        end = min(self.row_end, self.covered_end)
        return end if self.shown is None else self.shown.whole_end(end)

    @property
    def scores(self) -> bool:
        """Whether log probabilities of prompt tokens are to be asked for from `num_computed` on."""
        return self.scoring is not None and self.scoring.begins(self.num_computed)

    @property
    def proposal(self) -> tuple[int, ...]:
        """The drafts that may stand behind the last token in the next step."""
        return () if self.drafts is None else self.drafts.proposal

    @property
    def max_cached(self) -> int:
        """How many positions may come from the prefix cache: the last one is always computed, for its logits, or all are.

        In deterministic mode the last two before `pinned_end` are: one that is left over would be a row of one token.
        """
        most = 0 if self.whole else self.num_tokens - 1
        if self.pinned_end is not None:
            most = min(most, max(0, self.pinned_end - 2))
        return most if self.scoring is None or self.scoring.is_done else min(most, self.scoring.asked)

    def want(self, end: int, *, num_drafts: int = 0) -> Want:
        """What is asked of a row from `num_computed` up to `end`, whose last tokens are drafts; scores are noted as asked for."""
        last = end - num_drafts == self.length
        if self.scoring is not None and self.scores:
            return self.scoring.ask(self.tokens, self.num_computed, end, sample=last)
        if not last:
            return None
        if self.pools is not None:
            return self.pools
        return sample(1 + num_drafts)

    def note_published(self, end: int, *, page_size: int) -> None:
        """Its pages up to `end` can be found; in deterministic mode those from `pinned_end` on are never offered."""
        due = end + page_size
        self.publishes_at = due if self.pinned_end is None or due <= self.pinned_end else NEVER

    def append(self, token: int) -> None:
        """Add a generated token."""
        at = self.num_tokens
        try:
            self._tokens[at] = token
        except IndexError:
            self._tokens = np.concatenate([self._tokens, np.empty(len(self._tokens), np.int32)])
            self._tokens[at] = token
        self.num_tokens = at + 1

    def extend(self, tokens: tuple[int, ...] | Int32s) -> None:
        """Add generated tokens."""
        at, end = self.num_tokens, self.num_tokens + len(tokens)
        while end > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty(len(self._tokens), np.int32)])
        self._tokens[at:end] = tokens
        self.num_tokens = end

    def lapse(self) -> None:
        """The device drafts for it no more, as long as it runs."""
        self.lapsed = True
        self.offered = min(self.offered, 0)
        self.plain = not self.sampling.mask_changes

    def forget_pages(self) -> None:
        """Nothing is computed and no page is held."""
        if self.max_offered:
            self.lapsed = self.plain = False
        self.arriving = False
        self.num_computed = 0
        self.offered = -1
        self.guesses = ()
        self.publishes_at = self.snapshot_end = NEVER
        self.covered_end = 0
        self.pages = NO_PAGES
