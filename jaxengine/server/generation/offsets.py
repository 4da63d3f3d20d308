"""Where each token's text begins in the text of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Self

from jaxengine.contract.request import Request
from jaxengine.text.tokenizer import Tokenizer


class TextOffsets:
    """Tokens are named in order, with the text that each adds to those before it.

    `hidden` are the ids that the sequence's text leaves out (special tokens): they have no length. `decode` gives the text of
    ids: tokens without a text of their own are bytes, and become a character, which is the text of the token that completes it,
    or replacement characters, which are no token's and stand before the next. A prompt that is echoed as it was written begins
    with `added` tokens that are not in it, and hides none of its `written` ones.
    """

    def __init__(
        self,
        *,
        hidden: frozenset[int] = frozenset(),
        decode: Callable[[Sequence[int]], str] | None = None,
        added: int = 0,
        written: int = 0,
    ) -> None:
        self._hidden = hidden
        self._added, self._written = added, written
        self._named = 0
        self._decode = decode
        self._bytes: list[int] = []
        self._end = 0

    @classmethod
    def of(cls, request: Request, tokenizer: Tokenizer | None, *, echo: bool = False) -> Self:
        """Those of a sequence of this request, behind its prompt with `echo`."""
        if tokenizer is None:
            return cls()
        skips = request.sampling.skip_special_tokens
        hidden = tokenizer.special_ids if skips else frozenset()
        if not echo or request.prompt is None:
            return cls(hidden=hidden, decode=tokenizer.decode)
        ids = request.prompt_token_ids
        return cls(
            hidden=hidden, decode=tokenizer.decode, added=_added(request.prompt, ids, tokenizer), written=len(ids)
        )

    def place(self, token_id: int, text: str) -> int:
        """Where the text of the next token begins."""
        self._named += 1
        if self._named <= self._added or (token_id in self._hidden and self._named > self._written):
            return self._end
        begin = self._end + self._replaced_before(token_id, text)
        self._end = begin + len(text)
        return begin

    def _replaced_before(self, token_id: int, text: str) -> int:
        """The length of what bytes left in the text that this token did not make a character."""
        if not text:
            self._bytes.append(token_id)
        if not text or not self._bytes or self._decode is None:
            return 0
        ids, self._bytes = [*self._bytes, token_id], []
        return max(0, len(self._decode(ids)) - len(text))


def _added(prompt: str, ids: Sequence[int], tokenizer: Tokenizer) -> int:
    """How many of the ids the tokenizer put before a text that may itself begin with special tokens."""
    special = list(takewhile(tokenizer.special_ids.__contains__, ids))
    return next(first for first in range(len(special) + 1) if prompt.startswith(tokenizer.decode(special[first:])))
