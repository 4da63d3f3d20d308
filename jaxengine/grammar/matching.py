"""A compiled grammar, and how far one sequence has come in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxengine.contract.arrays import Bitmask, Int32s
from jaxengine.errors import JaxEngineError

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

BITS = 32


@cache
def _executor() -> LLExecutor:
    from llguidance import LLExecutor

    return LLExecutor()


class GrammarError(JaxEngineError):
    """A grammar grew beyond its limits while a sequence was generated; that sequence cannot go on."""


class Grammar:
    """What every sequence of the same form starts from; never advanced itself."""

    def __init__(self, matcher: LLMatcher, *, vocab_size: int, end_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._num_words = -(-vocab_size // BITS)
        self._ends = np.zeros(self._num_words, np.uint32)
        for token in end_ids:
            self._ends[token // BITS] |= np.uint32(1 << token % BITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # fills the caches that copies then begin with

    def error(self) -> str | None:
        """What is wrong with it, None when it can be used."""
        return str(self._matcher.get_error()) if self._matcher.is_error() else None

    def start(self, *, may_end: bool) -> GrammarState:
        """The state of a new sequence. Unless `may_end`, it ends only where nothing else may follow."""
        avoid = None if may_end else self._ends
        return GrammarState(self._matcher.deep_copy(), ends=self._ends, avoid=avoid)


class GrammarState:
    """Follows one sequence: it is told its output as it grows, and says what may come next.

    Attributes:
        ends: the mask of the tokens that end it.
    """

    def __init__(self, matcher: LLMatcher, *, ends: Bitmask, avoid: Bitmask | None) -> None:
        self._matcher = matcher
        self.ends = ends
        self._avoid = avoid
        self._position = self._num_tried = 0

    def advance(self, output: Int32s) -> None:
        """Take in what `output` has gained.

        Raises:
            GrammarError: the matcher has given up.
        """
        for token in output[self._position :].tolist():
            self._matcher.consume_token(token)
            self._position += 1
        self._check()

    def try_on(self, token: int) -> None:
        """Take in a token that may turn out not to be there; `go_back` forgets all such."""
        self._matcher.consume_token(token)
        self._num_tried += 1

    def go_back(self) -> None:
        """Forget what was tried on."""
        if self._num_tried:
            self._matcher.rollback(self._num_tried)
            self._num_tried = 0

    def mask(self) -> Bitmask:
        """What may come next.

        Raises:
            GrammarError: nothing may, or the matcher has given up.
        """
        [mask] = self.masks([self])
        if isinstance(mask, GrammarError):
            raise mask
        return mask

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot go on: {self._matcher.get_error()}")

    def _finish_mask(self, mask: Bitmask) -> Bitmask:
        self._check()
        if self._avoid is not None:
            others = mask & ~self._avoid
            if others.any():
                return others
        if not mask.any():
            raise GrammarError("the grammar has come to a dead end")
        return mask

    @staticmethod
    def masks(states: Sequence[GrammarState]) -> list[Bitmask | GrammarError]:
        """What may follow in each of several sequences, on several threads; or why one cannot go on."""
        if not states:
            return []
        masks = np.zeros((len(states), len(states[0].ends)), np.int32)
        jobs: list[Any] = [(state._matcher, row) for row, state in enumerate(states)]
        _executor().unsafe_compute_mask_ptr(jobs, masks.ctypes.data, masks.shape[1] * masks.itemsize, len(states))
        results: list[Bitmask | GrammarError] = []
        for state, mask in zip(states, masks.view(np.uint32), strict=True):
            try:
                results.append(state._finish_mask(mask))
            except GrammarError as error:
                results.append(error)
        return results
