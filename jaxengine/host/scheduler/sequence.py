"""A sequence while it lives. Mutable, and seen by the scheduler only."""

from __future__ import annotations

from enum import Enum

import numpy as np

from jaxengine.contract.batch import Int32s, Pool, Sample, Score, Want
from jaxengine.contract.request import Request
from jaxengine.host.kvcache.prefix import Chain
from jaxengine.host.scheduler.masks import TokenMask
from jaxengine.host.scheduler.policy import Urgency
from jaxengine.host.scheduler.slot_sampling import SlotSampling
from jaxengine.options.speculation import NgramSpeculation

NO_PAGES: Int32s = np.zeros((1, 0), np.int32)
ROOM = 64
"""Tokens of output that a sequence's buffer has room for at first; it doubles when full."""
REST, DOUBLINGS = 8, 5
"""Tokens without proposals after a draft of which nothing was right, and how often that doubles."""
ONE = Sample()
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

    def __init__(self, request: Request, *, number: int, max_tokens: int, mask: TokenMask | None) -> None:
        self.request = request
        self.request_id = request.request_id
        self.number = number
        self.max_tokens = max_tokens
        self.mask = mask
        # A grammar allows the end where nothing else may follow even if it is to be ignored elsewhere.
        ignores_eos = request.sampling.ignore_eos and request.grammar is None
        self.eos_token_id = None if ignores_eos else request.eos_token_id
        self.stop_ids = request.stop_token_ids
        self.ends = self.stop_ids | {self.eos_token_id}
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


class Sequence:
    """One prompt and the output generated from it.

        position   0                  num_computed        num_tokens    length
                   |---- in pages ----|---- to compute ----|. . . . . . |  next token goes here
                   |------- prompt -------|---- output ----| in flight  |
                                     num_prompt

    Two clocks run here. What is *planned* is what launched steps do: `num_computed` positions, `length` tokens, of which steps in
    flight sample the last `pending`. What is *known* has come back: `num_tokens`. The scheduler plans ahead of what is known.

    A sequence that decodes has one token to compute, which may be known to the device alone. Three things bound a row of more:

    - while prompt log probabilities are wanted, those that have been asked for (`num_scored`) are not asked for again;
    - in deterministic mode `pinned_end` is where rows of several tokens end and rows of one begin, so that one and the same
      kernel computes a position always;
    - with drafts in flight (`drafted`) nothing is planned, because how many were right is not known; with a `proposal` of
      what may follow, nothing until all its tokens are known, because drafts stand behind the last one.

    `pages` are the ledger's for positions up to `covered_end`, into which the sequence may write: all its tokens, or where the
    model has windows those of the next step. `slot` is its place on the device; until its first row there `begins`.
    """

    __slots__ = (
        "_tokens",
        "begins",
        "chain",
        "committed_pages",
        "covered_end",
        "drafted",
        "grammar",
        "grammar_error",
        "group",
        "index",
        "last_token",
        "max_length",
        "misses",
        "num_cached",
        "num_computed",
        "num_drafted",
        "num_preemptions",
        "num_prompt",
        "num_queued",
        "num_right",
        "num_scored",
        "num_tokens",
        "num_wanted_logprobs",
        "pages",
        "pending",
        "pinned_end",
        "plain",
        "pools",
        "proposal",
        "rests_until",
        "sampling",
        "sequence_id",
        "slot",
        "speculation",
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
        self.index = index
        self.sequence_id = sequence_id
        self.urgency = urgency
        self.chain = chain
        self.grammar = (
            None if request.grammar is None else request.grammar.start(may_end=not request.sampling.ignore_eos)
        )
        self.grammar_error: str | None = None
        self.sampling = SlotSampling(request, index, mask=group.mask)
        self.pools = request.pooling is not None
        # Drafts are checked with what the device keeps of a sequence, which masks and penalties change from token to token.
        self.speculation = None if self.pools or self.sampling.depends_on_output else speculation
        self.plain = not (self.pools or self.speculation or self.sampling.mask_changes)
        self.num_prompt = self.num_tokens = len(prompt)
        self._tokens: Int32s = np.empty(len(prompt) + min(group.max_tokens, ROOM), np.int32)
        self._tokens[: len(prompt)] = prompt
        self.last_token = prompt[-1]
        self.max_length = len(prompt) + group.max_tokens
        wants_logprobs = request.sampling.prompt_logprobs is not None
        self.num_wanted_logprobs = len(prompt) - 1 if wants_logprobs and index == 0 else 0
        self.num_scored = 0
        # A prompt that is scored goes in rows of one altogether: how many places may be kept would cut it anywhere.
        rows_end = 0 if self.num_wanted_logprobs else len(prompt)
        self.pinned_end: int | None = rows_end if deterministic else None
        self.num_cached: int | None = None  # of the prompt, when it was first admitted
        self.num_preemptions = 0
        self.num_queued = 0  # tokens when it began to wait
        self.pending = 0
        self.drafted = 0
        self.proposal: tuple[int, ...] = ()
        self.num_drafted = self.num_right = 0  # tokens of drafts that were checked, and that were right
        self.misses = 0  # drafts in a row of which nothing was right, or that there was no room for
        self.rests_until = 0  # tokens before which nothing is proposed
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
        pending = self.pending
        return self.num_tokens + pending >= self.max_length or (pending > 0 and bool(self.drafted or self.proposal))

    @property
    def row_end(self) -> int:
        """How far a row of several tokens may reach from `num_computed`."""
        end = self.num_tokens if self.pinned_end is None else min(self.num_tokens, self.pinned_end)
        if self.num_computed < self.num_scored < self.num_wanted_logprobs:
            return min(end, self.num_scored)
        return end

    @property
    def scores(self) -> bool:
        """Whether log probabilities of prompt tokens are to be asked for from `num_computed` on."""
        return self.num_scored < self.num_wanted_logprobs and self.num_computed >= self.num_scored

    @property
    def max_cached(self) -> int:
        """How many positions may come from the prefix cache: the last one is always computed, for its logits.

        In deterministic mode the last two before `pinned_end` are: one that is left over would be a row of one token.
        """
        most = self.num_tokens - 1
        if self.pinned_end is not None:
            most = min(most, max(0, self.pinned_end - 2))
        return min(most, self.num_scored) if self.num_scored < self.num_wanted_logprobs else most

    def want(self, end: int) -> Want:
        """What is asked of a row from `num_computed` up to `end`; notes the scores that it asks for."""
        last = end == self.num_tokens
        if self.scores:
            start = self.num_computed
            scored_end = min(end, self.num_wanted_logprobs)
            self.num_scored = scored_end
            return Score(tuple(self._tokens[start + 1 : scored_end + 1].tolist()), sample=last)
        if not last:
            return None
        return POOL if self.pools else ONE

    @property
    def draft_hits(self) -> float:
        """The share of its drafts that will be right, going by those that were checked."""
        return (1 + self.num_right) / (2 + self.num_drafted)

    def note_drafts(self, num_drafts: int, num_right: int) -> None:
        """Of so many drafts so many were right."""
        self.num_drafted += num_drafts
        self.num_right += num_right
        if num_right:
            self.misses = 0
        else:
            self.rest()

    def rest(self) -> None:
        """Propose nothing for a while, the longer the oftener this happens: a proposal costs a step, which it does not join."""
        self.proposal = ()
        self.rests_until = self.num_tokens + (REST << min(self.misses, DOUBLINGS))
        self.misses += 1

    def append(self, token: int) -> None:
        """Add a generated token."""
        if self.num_tokens == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty(len(self._tokens), np.int32)])
        self._tokens[self.num_tokens] = token
        self.num_tokens += 1
        self.last_token = token

    def forget_pages(self) -> None:
        """Nothing is computed and no page is held."""
        self.num_computed = 0
        self.committed_pages = 0
        self.covered_end = 0
        self.pages = NO_PAGES
