"""Texts become token ids without holding the interpreter for long, and without work on what is too long anyway.

A text of more characters than its tokens could spell is refused unread. The tokenizer lets other threads run while it
encodes, not while it hands over the ids of one call and clears up after it. So one call gets about a piece, and a long text is
counted piece by piece before it is encoded whole, which can only be done at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxengine.errors import ContextLengthError
from jaxengine.front.checks import advice
from jaxengine.server.service import Service
from jaxengine.text.tokenizer import Tokenizer

PIECE = 1 << 16
"""Characters: some 10 ms of work."""

LONGEST_TEXT = 1 << 18
"""Tokens of a text that need not fit the model: one that is cut to its end, or of `/tokenize`."""


def encode_texts(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    service: Service,
    *,
    special: bool,
    must_fit: bool = True,
    keep: int | None = None,
) -> list[list[int]]:
    """Token ids of texts, `special` with the model's special tokens, of each the first `keep`. Belongs on a thread.

    Raises:
        ContextLengthError: a text has more than twice the tokens that the model can take, or (unless it `must_fit`) more than
            `LONGEST_TEXT` if that is more. Twice, because in pieces a text has a few tokens more than whole.
    """
    most = 2 * service.max_model_len if must_fit else max(2 * service.max_model_len, LONGEST_TEXT)
    for text in texts:
        if tokenizer.certainly_exceeds(text, service.max_model_len if must_fit else most):
            raise _too_long(f"your text of {len(text)} characters has more", service, must_fit=must_fit)
        if len(text) > PIECE and _has_more(tokenizer, text, most):
            raise _too_long(f"your text has more than {most} tokens", service, must_fit=must_fit)
    return [
        ids
        for group in _groups(texts)
        for ids in tokenizer.encode_batch(group, add_special_tokens=special, max_length=keep)
    ]


def _has_more(tokenizer: Tokenizer, text: str, most: int) -> bool:
    """Whether a text has more than so many tokens, counted piece by piece until it is known."""
    count = 0
    for begin in range(0, len(text), PIECE):
        count += len(tokenizer.encode_batch([text[begin : begin + PIECE]], add_special_tokens=False)[0])
        if count > most:
            return True
    return False


def _too_long(what: str, service: Service, *, must_fit: bool) -> ContextLengthError:
    instead = advice(service.intake.facts) if must_fit else ""
    return ContextLengthError(
        f"This model's maximum context length is {service.max_model_len} tokens. However, {what}. Please reduce the length of "
        f"the input prompt{instead}.",
        param="input_tokens",
    )


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """Neighbours that come to a piece together; a longer text is alone."""
    group: list[str] = []
    length = 0
    for text in texts:
        if group and length + len(text) > PIECE:
            yield group
            group, length = [], 0
        group.append(text)
        length += len(text)
    if group:
        yield group
