"""Token ids to text as they come, never emitting half a character.

A window of recent ids is decoded again for each new one; what the window's text gained is the delta:

    ids      ... | the   cat   sat | on        window from the last boundary but one
    text         |"the cat sat"    |" on"      known part, delta

A boundary is a place where the text was complete. The window keeps the ids between the last two boundaries as context,
because decoders treat the first token of a text differently (they strip its leading space).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from jaxengine.text.tokenizer import REPLACEMENT, Tokenizer

WINDOW = 8
"""Ids in the window before it is cut at a boundary; cutting costs a decode, a long window makes each decode slower."""

PROMPT_CONTEXT = 16
"""Most prompt ids that are looked at for context."""

UNFINISHED = 3
"""Most replacement characters that a later token can turn into a character: three of four UTF-8 bytes."""


class Detokenizer:
    """The text of one sequence, in pieces.

    The pieces joined do not depend on how the ids were cut into pushes, and are what the prompt's text goes on with: for an
    empty prompt, the tokenizer's own decoding of all ids. (One exception: where malformed byte tokens follow well-formed
    ones, the tokenizer takes back the characters before them, and text already given stands.)
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._joined = tokenizer.added_tokens if not (skip_special_tokens or spaces_between_special_tokens) else {}
        self._last_was_added = False
        self._ids = self._context(prompt_ids)
        self._known = tokenizer.decode(self._ids)
        self._boundary = len(self._ids)

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` complete; bytes of an unfinished character wait for the next push."""
        shown = [token_id for token_id in ids if token_id not in self._skipped]
        text = self._push_whole(shown) if len(shown) > 1 and not self._joined else None
        return "".join([self._push_one(token_id) for token_id in shown]) if text is None else text

    def finish(self) -> str:
        """What is still held: the replacement characters of an unfinished character."""
        text = self._tokenizer.decode(self._ids)
        delta = text[len(self._known) :]
        self._known = text
        return delta

    def _push_whole(self, ids: list[int]) -> str | None:
        """All at once, which is one decode for many ids; None where replacement characters make it a matter of single ids."""
        text = self._tokenizer.decode([*self._ids, *ids])
        if REPLACEMENT in text or not text.startswith(self._known):
            return None
        delta = text[len(self._known) :]
        self._ids += ids
        self._known = text
        self._cut_window()
        return delta

    def _push_one(self, token_id: int) -> str:
        content = self._joined.get(token_id)
        if content is not None and self._last_was_added:
            delta = self.finish() + content
            self._restart([*self._ids, token_id])
            self._known = self._tokenizer.decode(self._ids)
            return delta
        self._last_was_added = content is not None

        self._ids.append(token_id)
        text = self._tokenizer.decode(self._ids)
        if not text.startswith(self._known):
            self._restart([token_id])
            text = self._tokenizer.decode(self._ids)
        complete = len(text) - _unfinished(text)
        delta = text[len(self._known) : complete]
        self._known += delta
        if complete == len(text):
            self._cut_window()
        return delta

    def _cut_window(self) -> None:
        """The end of the ids is a boundary: drop those before the previous one when the window is long."""
        if len(self._ids) >= WINDOW and self._boundary > 0:
            context = self._ids[self._boundary :]
            text = self._tokenizer.decode(context)
            if text:
                self._ids, self._known = context, text
        self._boundary = len(self._ids)

    def _restart(self, ids: list[int]) -> None:
        self._ids, self._known, self._boundary = ids, "", 0

    def _context(self, prompt_ids: Sequence[int]) -> list[int]:
        """The shortest end of the prompt that decodes to whole characters; ids of a character cut in two are left out.

        Where a prompt has a text and no such end, a plain token stands for it: what follows is not the beginning of a text.
        """
        ids = list(islice((i for i in reversed(prompt_ids) if i not in self._skipped), PROMPT_CONTEXT))[::-1]
        for _ in range(UNFINISHED + 1):
            if not self._tokenizer.decode(ids).endswith(REPLACEMENT):
                break
            ids = ids[:-1]
        for start in range(len(ids) - 1, -1, -1):
            text = self._tokenizer.decode(ids[start:])
            if text and not text.startswith(REPLACEMENT) and not text.endswith(REPLACEMENT):
                return ids[start:]
        return [self._tokenizer.anchor_id] if ids and self._tokenizer.anchor_id is not None else []


def _unfinished(text: str) -> int:
    """How many characters at the end may still change."""
    if not text.endswith(REPLACEMENT):
        return 0
    return min(UNFINISHED, len(text) - len(text.rstrip(REPLACEMENT)))
