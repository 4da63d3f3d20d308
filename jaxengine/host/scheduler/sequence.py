"""A sequence while it lives. Mutable, and seen by the scheduler only."""

from __future__ import annotations

import sys
from enum import Enum
from functools import lru_cache

import numpy as np

from jaxengine.contract.batch import ONE, Int32s, Pool, Sample, Want
from jaxengine.contract.request import Request
from jaxengine.contract.updates import Admission
from jaxengine.grammar.matching import Grammar
from jaxengine.host.kvcache.prefix import Chain
from jaxengine.host.scheduler.drafts import Drafts
from jaxengine.host.scheduler.masks import TokenMask
from jaxengine.host.scheduler.policy import Urgency
from jaxengine.host.scheduler.scoring import Scoring
from jaxengine.host.scheduler.slot_sampling import SlotSampling
from jaxengine.options.speculation import NgramSpeculation

NO_PAGES: Int32s = np.zeros((1, 0), np.int32)
ROOM = 64
"""Tokens of output that a sequence's buffer has room for at first; it doubles when full."""
NEVER = sys.maxsize
POOL = Pool()


class State(Enum):
    """Where a sequence is: it holds pages and a slot only while RUNNING."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Group:
    """The sequences of one request.

    The second one is made when a step computes the prompt for the first, whose pages it and the others find in the prefix cache;
    the later ones one by one, each when there was room to run the one before.
    """

    def __init__(
        self,
        request: Request,
        *,
        number: int,
        max_tokens: int,
        mask: TokenMask | None,
        grammar: Grammar | None = None,
    ) -> None:
        self.request = request
        self.grammar = grammar
        self.request_id = request.request_id
        self.number = number
        self.max_tokens = max_tokens
        self.mask = mask
        # A grammar allows the end where nothing else may follow even if it is to be ignored elsewhere.
        ignores_eos = request.sampling.ignore_eos and request.grammar is None
        self.eos_token_id = None if ignores_eos else request.eos_token_id
        self.stop_ids = request.stop_token_ids
        self.ends = _ends(self.stop_ids, self.eos_token_id)
        self.live: dict[int, Sequence] = {}
        self.next_index = 0
        self.first_scheduled_time: float | None = None

    @property
    def has_more(self) -> bool:
        """Whether sequences of the request are still to be made."""
        return self.next_index < self.request.sampling.n

    @property
    def has_only_first(self) -> bool:
        """Whether the first of several sequences is the only one that was made."""
        return self.next_index == 1 < self.request.sampling.n


@lru_cache(maxsize=1024)
def _ends(stop_ids: frozenset[int], eos_token_id: int | None) -> frozenset[int | None]:
    """The tokens that end a sequence: one set for all requests that have the same, so that to look there is quick."""
    return stop_ids | {eos_token_id}


class Sequence:
    """One prompt and the output generated from it.

        position   0                  num_computed        num_tokens    length
                   |---- in pages ----|---- to compute ----|. . . . . . |  next token goes here
                   |------- prompt -------|---- output ----| in flight  |
                                     num_prompt

    Two clocks run here. What is *planned* is what launched steps do: `num_computed` positions, `length` tokens, of which steps in
    flight sample the last `pending`. What is *known* has come back: `num_tokens`. The scheduler plans ahead of what is known.

    A sequence that decodes has one token to compute, which may be known to the device alone. Three things bound a row of more:

    - while prompt log probabilities are wanted, those that have been asked for (`scoring`) are not asked for again;
    - in deterministic mode `pinned_end` is where rows of several tokens end and rows of one begin, so that one and the same
      kernel computes a position always;
    - with `drafts` in flight nothing is planned, because how many were right is not known; with a proposal of what may follow,
      nothing until all its tokens are known, because drafts stand behind the last one.

    A sequence is `plain` if its rows, while its output grows, are asked for a token each and nothing else.

    `pages` are the ledger's for positions up to `covered_end`, into which the sequence may write: all its tokens, or where the
    model has windows those of the next step; with `publishes_at` tokens another page may be offered to others. `slot` is its
    place on the device; until its first row there `begins`.
    """

    __slots__ = (
        "_tokens",
        "admission",
        "begins",
        "chain",
        "covered_end",
        "drafts",
        "ends",
        "grammar",
        "grammar_error",
        "group",
        "index",
        "max_length",
        "num_computed",
        "num_prompt",
        "num_queued",
        "num_tokens",
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
        "slot",
        "state",
        "urgency",
    )

    def __init__(
        self,
        group: Group,
        *,
        index: int,
        sequence_id: int,
        urgency: Urgency,
        deterministic: bool,
        speculation: NgramSpeculation | None,
        chain: Chain,
    ) -> None:
        request = group.request
        prompt = request.prompt_token_ids
        self.group = group
        self.request_id = group.request_id
        self.ends = group.ends
        self.index = index
        self.sequence_id = sequence_id
        self.urgency = urgency
        self.chain = chain
        may_end = not request.sampling.ignore_eos
        self.grammar = None if group.grammar is None else group.grammar.start(may_end=may_end)
        self.grammar_error: str | None = None
        self.sampling = SlotSampling(request, index, mask=group.mask)
        self.pools = request.pooling is not None
        # Drafts are checked with what the device keeps of a sequence, which masks and penalties change from token to token.
        drafts = speculation is not None and not self.pools and not self.sampling.depends_on_output
        self.drafts = Drafts(speculation) if drafts and speculation is not None else None
        self.plain = not (self.pools or self.drafts or self.sampling.mask_changes)
        self.num_prompt = self.num_tokens = len(prompt)
        self._tokens: Int32s = np.empty(len(prompt) + min(group.max_tokens, ROOM), np.int32)
        self._tokens[: len(prompt)] = prompt
        self.max_length = len(prompt) + group.max_tokens
        is_scored = request.sampling.prompt_logprobs is not None and index == 0 and len(prompt) > 1
        self.scoring = Scoring(len(prompt)) if is_scored else None
        # A prompt that is scored goes in rows of one altogether: how many places may be kept would cut it anywhere.
        rows_end = 0 if is_scored else len(prompt)
        self.pinned_end: int | None = rows_end if deterministic else None
        self.admission = Admission()
        self.num_queued = 0  # tokens when it began to wait
        self.pending = 0
        self.slot = 0
        self.begins = False
        self.state = State.WAITING
        self.forget_pages()

    @property
    def tokens(self) -> Int32s:
        """Prompt and output so far, as a view that later tokens do not change."""
        return self._tokens[: self.num_tokens]

    @property
    def findable(self) -> Int32s:
        """The tokens whose pages others may find, and may wait for: in deterministic mode those before `pinned_end`.

        Others compute those in rows of several tokens too, and the later ones in rows of one.
        """
        return self.tokens if self.pinned_end is None else self._tokens[: min(self.num_tokens, self.pinned_end)]

    @property
    def length(self) -> int:
        """Tokens, those that steps in flight sample included."""
        return self.num_tokens + self.pending

    @property
    def waits(self) -> bool:
        """Whether nothing can be planned before results come back.

        It has all its tokens, or nobody knows how many, or what is proposed does not follow its last token, which is not known.
        """
        pending, drafts = self.pending, self.drafts
        if self.num_tokens + pending >= self.max_length:
            return True
        return pending > 0 and drafts is not None and bool(drafts.in_flight or drafts.proposal)

    @property
    def row_end(self) -> int:
        """How far a row of several tokens may reach from `num_computed`."""
        end = self.num_tokens if self.pinned_end is None else min(self.num_tokens, self.pinned_end)
        scoring = self.scoring
        if scoring is not None and not scoring.is_done and self.num_computed < scoring.asked:
            return min(end, scoring.asked)
        return end

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
        """How many positions may come from the prefix cache: the last one is always computed, for its logits.

        In deterministic mode the last two before `pinned_end` are: one that is left over would be a row of one token.
        """
        most = self.num_tokens - 1
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
        if self.pools:
            return POOL
        return Sample(1 + num_drafts) if num_drafts else ONE

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

    def forget_pages(self) -> None:
        """Nothing is computed and no page is held."""
        self.num_computed = 0
        self.publishes_at = NEVER
        self.covered_end = 0
        self.pages = NO_PAGES
