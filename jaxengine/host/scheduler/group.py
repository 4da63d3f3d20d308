"""A request while it lives: which of its sequences were made, and what they have in common."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from jaxengine.contract.request import Request
from jaxengine.contract.updates import Admission
from jaxengine.grammar.matching import Grammar
from jaxengine.host.scheduler.masks import TokenMask

if TYPE_CHECKING:
    from jaxengine.host.scheduler.sequence import Sequence


class Group:
    """The sequences of one request.

    The second one is made when a step computes the prompt for the first, whose pages it and the others find in the prefix cache;
    the later ones one by one, each when there was room to run the one before. Those that ended before this engine got the request
    are not made.
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
        self.last_made: int | None = None
        self._to_make = deque(index for index in range(request.sampling.n) if not request.history_of(index).ended)
        self._num_made = 0
        self.first_scheduled_time: float | None = None
        self.waited_for: str | None = None

    @property
    def has_more(self) -> bool:
        """Whether sequences of the request are still to be made."""
        return bool(self._to_make)

    @property
    def has_only_first(self) -> bool:
        """Whether the first of several sequences is the only one that was made."""
        return self._num_made == 1 and self.has_more

    def make_next(self) -> int:
        """The index of the next sequence, which counts as made from now on."""
        self._num_made += 1
        self.last_made = self._to_make.popleft()
        return self.last_made

    def unfinished(self) -> list[tuple[int, Admission, int]]:
        """The index of every sequence that has not ended, how it came to run, and how many tokens it has yielded."""
        live = [(index, sequence.admission, sequence.num_output) for index, sequence in self.live.items()]
        histories = [(index, self.request.history_of(index)) for index in self._to_make]
        return live + [(index, history.admission, len(history.token_ids)) for index, history in histories]

    def never_make(self, index: int) -> None:
        """Leave this sequence out, unless it was made already."""
        with suppress(ValueError):
            self._to_make.remove(index)

    def awaits_room_for(self, sequence: Sequence) -> bool:
        """Whether this sequence, made last and not first, is what the next one waits for."""
        return self.has_more and self._num_made > 1 and sequence.index == self.last_made


@lru_cache(maxsize=1024)
def _ends(stop_ids: frozenset[int], eos_token_id: int | None) -> frozenset[int | None]:
    """The tokens that end a sequence: one set for all requests that have the same, so that to look there is quick."""
    return stop_ids | {eos_token_id}
