"""Where each token's text begins in the text of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from jaxengine.contract.request import Request
from jaxengine.text.tokenizer import Tokenizer


class TextOffsets:
    """Tokens are named in order, with the text that each adds to those before it.

    `hidden` are the ids that the sequence's text leaves out (special tokens): they have no length. `decode` gives the text of
    ids: tokens without a text of their own are bytes, and become a character, which is the text of the token that completes it,
    or replacement characters, which are no token's and stand before the next.
    """

    def __init__(
        self, *, hidden: frozenset[int] = frozenset(), decode: Callable[[Sequence[int]], str] | None = None
    ) -> None:
        self._hidden = hidden
        self._decode = decode
        self._bytes: list[int] = []
        self._end = 0

    @classmethod
    def of(cls, request: Request, tokenizer: Tokenizer | None) -> Self:
        """Those of a sequence of this request."""
        if tokenizer is None:
            return cls()
        skips = request.sampling.skip_special_tokens
        return cls(hidden=tokenizer.special_ids if skips else frozenset(), decode=tokenizer.decode)

    def place(self, token_id: int, text: str) -> int:
        """Where the text of the next token begins."""
        if token_id in self._hidden:
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
