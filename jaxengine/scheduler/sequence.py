"""A sequence while it lives. Mutable, and seen by the scheduler only."""

from __future__ import annotations

from enum import Enum

import numpy as np

from jaxengine.batch import Int32s, RowSampling
from jaxengine.request import Request
from jaxengine.scheduler.masks import TokenMask
from jaxengine.scheduler.policy import Urgency
from jaxengine.scheduler.row_sampling import SequenceSampling

NO_PAGES: Int32s = np.zeros(0, np.int32)
ROOM = 64
"""Tokens of output that a sequence's buffer has room for at first; it doubles when full."""


class State(Enum):
    """Where a sequence is: it holds pages only while RUNNING."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Group:
    """The sequences of one request. The second and later ones are made one by one, when there is room to run them.

    `unshared` says that the first sequence has yet to share the prompt with the others. `template_id` is a ledger entry
    without a sequence: it holds the prompt's pages from then on until every other one has forked from it, and may be dropped
    at any time (they then compute the prompt themselves, or find it in the prefix cache).
    """

    def __init__(self, request: Request, *, number: int, max_tokens: int, mask: TokenMask | None) -> None:
        self.request = request
        self.number = number
        self.max_tokens = max_tokens
        self.mask = mask
        # A grammar allows the end where nothing else may follow even if it is to be ignored elsewhere.
        ignores_eos = request.sampling.ignore_eos and request.grammar is None
        self.eos_token_id = None if ignores_eos else request.eos_token_id
        self.stop_ids = frozenset(request.sampling.stop_token_ids or ())
        self.live: dict[int, Sequence] = {}
        self.next_index = 0
        self.unshared = request.sampling.n > 1
        self.template_id: int | None = None
        self.first_scheduled_time: float | None = None

    @property
    def has_more(self) -> bool:
        """Whether sequences of the request are still to be made."""
        return self.next_index < self.request.sampling.n


class Sequence:
    """One prompt and the output generated from it.

        position   0                  num_computed        num_tokens
                   |---- in pages ----|---- to compute ----|  next token goes here
                   |------- prompt -------|---- output ----|
                                     num_prompt

    A sequence that decodes has exactly one token to compute. `prefill_end` says where prefill rows end and rows of one token
    begin:

    - usually at `num_tokens`: whatever is not computed, also after a preemption, is prompt-like;
    - while prompt log probabilities are wanted, at the first position whose next token has none yet, because a row reports
      on the token after its last one only;
    - in deterministic mode at `pinned_end`, a fixed position, so that one and the same program computes a position always.

    `pages` are the ledger's for positions up to `covered_end`, into which the sequence may write.
    """

    __slots__ = (
        "_tokens",
        "committed_pages",
        "covered_end",
        "grammar",
        "grammar_error",
        "group",
        "index",
        "last_token",
        "max_length",
        "num_cached",
        "num_computed",
        "num_preemptions",
        "num_prompt",
        "num_prompt_logprobs",
        "num_tokens",
        "num_wanted_logprobs",
        "pages",
        "pinned_end",
        "sampling",
        "sequence_id",
        "state",
        "urgency",
    )

    def __init__(self, group: Group, *, index: int, sequence_id: int, urgency: Urgency, deterministic: bool) -> None:
        request = group.request
        prompt = request.prompt_token_ids
        self.group = group
        self.index = index
        self.sequence_id = sequence_id
        self.urgency = urgency
        self.grammar = (
            None if request.grammar is None else request.grammar.start(may_end=not request.sampling.ignore_eos)
        )
        self.grammar_error: str | None = None
        self.sampling = SequenceSampling(request, index, mask=group.mask)
        self.num_prompt = self.num_tokens = len(prompt)
        self._tokens: Int32s = np.empty(len(prompt) + min(group.max_tokens, ROOM), np.int32)
        self._tokens[: len(prompt)] = prompt
        self.last_token = prompt[-1]
        self.max_length = len(prompt) + group.max_tokens
        wants_logprobs = request.sampling.prompt_logprobs is not None
        self.num_wanted_logprobs = len(prompt) - 1 if wants_logprobs and index == 0 else 0
        self.num_prompt_logprobs = 0
        # Later sequences run the last prompt token in a decode row when they fork; so they must when they do not.
        rows_end = 0 if wants_logprobs else len(prompt) - (index > 0)
        self.pinned_end: int | None = rows_end if deterministic else None
        self.num_cached: int | None = None  # of the prompt, when it was first admitted
        self.num_preemptions = 0
        self.state = State.WAITING
        self.forget_pages()

    @property
    def tokens(self) -> Int32s:
        """Prompt and output so far, as a view that later tokens do not change."""
        return self._tokens[: self.num_tokens]

    @property
    def num_outputs(self) -> int:
        return self.num_tokens - self.num_prompt

    @property
    def prefill_end(self) -> int:
        """The first position that is computed by a row of one token."""
        if self.pinned_end is not None:
            return self.pinned_end
        if self.num_prompt_logprobs < self.num_wanted_logprobs:
            return self.num_prompt_logprobs
        return self.num_tokens if self.num_tokens - self.num_computed > 1 else self.num_computed

    @property
    def max_cached(self) -> int:
        """How many positions may come from the prefix cache: the last one is always computed, for its logits."""
        return min(self.prefill_end, self.num_tokens - 1)

    @property
    def decodes(self) -> bool:
        """Whether one row of one token, and then sampling, is all there is to do."""
        return self.num_tokens - self.num_computed == 1 and self.num_computed >= (self.pinned_end or 0)

    def append(self, token: int) -> None:
        """Add a generated token."""
        if self.num_tokens == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty(len(self._tokens), np.int32)])
        self._tokens[self.num_tokens] = token
        self.num_tokens += 1
        self.last_token = token

    def row_sampling(self, end: int) -> RowSampling | None:
        """What is asked of a row whose last position is `end - 1`."""
        if end == self.num_tokens:
            return self.sampling.next_token(self.tokens)
        if self.num_prompt_logprobs < end <= self.num_wanted_logprobs:
            return self.sampling.prompt_token(self._tokens[end])
        return None

    def forget_pages(self) -> None:
        """Nothing is computed and no page is held."""
        self.num_computed = 0
        self.committed_pages = 0
        self.covered_end = 0
        self.pages = NO_PAGES
