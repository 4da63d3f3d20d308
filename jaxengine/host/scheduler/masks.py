"""Which tokens a sequence may sample next: allowed_token_ids, min_tokens, bad_words and a budget of thoughts as one bitmask."""

from __future__ import annotations

import numpy as np

from jaxengine.contract.arrays import Bitmask, Int32s
from jaxengine.contract.request import Request, ThinkingBudget
from jaxengine.errors import RequestError
from jaxengine.host.scheduler.bits import clear, mask_of
from jaxengine.host.scheduler.speech_masks import SpeechMasks


class TokenMask:
    """The mask of one request, shared by its sequences: it depends on nothing but their output so far.

    `changes` says that it does depend on it.

    Raises:
        RequestError: no token is left to sample.
    """

    def __init__(self, request: Request, vocab_size: int) -> None:
        sampling = request.sampling
        words = [word for word in request.bad_words_token_ids if word]
        self._words: dict[int, list[tuple[Int32s, int]]] = {}
        for *head, last in words:
            if head:
                self._words.setdefault(head[-1], []).append((np.array(head, np.int32), last))
        self._min_tokens = sampling.min_tokens
        self._vocab_size = vocab_size
        self._thinking = request.thinking
        self._speech = None if request.speech is None else SpeechMasks(request.speech, vocab_size)
        self.changes = bool(self._min_tokens or self._words or self._thinking or self._speech)

        mask = mask_of(
            range(vocab_size) if sampling.allowed_token_ids is None else sampling.allowed_token_ids, vocab_size
        )
        single = [word[0] for word in words if len(word) == 1]
        clear(mask, single)
        if not mask.any():
            raise RequestError("bad_words rules out every token that may be sampled; allow others", param="bad_words")
        early = mask.copy()
        clear(early, [*_eos_of(request), *request.stop_token_ids])
        if self._min_tokens and not early.any():
            raise RequestError(
                f"min_tokens={self._min_tokens} rules out the end of sequence and the stop tokens, and no other token is "
                "allowed; allow more tokens or set min_tokens=0",
                param="min_tokens",
            )
        self._all = mask
        self._early = early
        self._late = mask if sampling.allowed_token_ids is not None or single else None

    def within(self, by_grammar: Bitmask, ends: Bitmask, output: Int32s) -> Bitmask:
        """Of the tokens that a grammar allows after `output` those that are allowed here too, of which there may be none.

        Where it can only end it may, unless `min_tokens` says otherwise: `allowed_token_ids` are those of the text. The end of
        thoughts is left aside by a grammar that has none.
        """
        forced = self._forced(output)
        if forced is not None and (by_grammar & forced).any():
            return forced
        own = self._unforced(output)
        both = by_grammar if own is None else by_grammar & own
        return both if both.any() or len(output) < self._min_tokens else by_grammar & ends

    @property
    def everything(self) -> Bitmask:
        """The mask that allows every token of the vocabulary."""
        return mask_of(range(self._vocab_size), self._vocab_size)

    def allowed(self, output: Int32s) -> Bitmask | None:
        """The tokens that may follow `output`; None allows all.

        A bad word of several tokens bans its last one while the output ends in the others, unless nothing would be left.
        Thoughts that have reached their budget end, whatever else is allowed.
        """
        forced = self._forced(output)
        if forced is not None:
            return forced
        own = self._unforced(output)
        if self._speech is None:
            return own
        of_speech = self._speech.allowed(output)
        both = of_speech if own is None else own & of_speech
        return both if both.any() else of_speech

    def _forced(self, output: Int32s) -> Bitmask | None:
        token = None if self._thinking is None else end_of_thoughts(self._thinking, output)
        return None if token is None else mask_of([token], self._vocab_size)

    def _unforced(self, output: Int32s) -> Bitmask | None:
        base = self._early if len(output) < self._min_tokens else self._late
        candidates = self._words.get(int(output[-1]), ()) if self._words and len(output) else ()
        banned = [last for head, last in candidates if _ends_with(output, head)]
        if not banned:
            return base
        mask = (self._all if base is None else base).copy()
        clear(mask, banned)
        return mask if mask.any() else base


def masks_anything(request: Request) -> bool:
    """Whether any sequence of the request ever needs a mask."""
    sampling = request.sampling
    return bool(
        sampling.allowed_token_ids is not None
        or request.bad_words_token_ids
        or request.thinking is not None
        or request.speech is not None
        or (sampling.min_tokens and (request.stop_token_ids or _eos_of(request)))
    )


def end_of_thoughts(budget: ThinkingBudget, output: Int32s) -> int | None:
    """The token that has to follow `output`, because its thoughts have reached their budget; None where anything may."""
    begin = 0
    if not budget.opened:
        begins = np.flatnonzero(output == budget.begin)
        if not len(begins):
            return None
        begin = int(begins[0]) + 1
    thoughts, end = output[begin:], budget.end
    over = len(thoughts) - budget.tokens
    if over < 0 or (thoughts == end[-1]).any():
        return None
    # A grammar may have had no place for a token of the end yet: within a character.
    said = next(
        said for said in range(min(over, len(end) - 1), -1, -1) if _ends_with(thoughts, np.array(end[:said], np.int32))
    )
    return end[said]


def _eos_of(request: Request) -> tuple[int, ...]:
    """All ends of sequence, ignored or not."""
    return (*(() if request.eos_token_id is None else (request.eos_token_id,)), *request.more_eos_ids)


def _ends_with(output: Int32s, head: Int32s) -> bool:
    return len(output) >= len(head) and bool(np.array_equal(output[len(output) - len(head) :], head))
