"""How many pages a sequence takes where some layers see a window of it only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def first_page_seen(keep: int | None, position: int, *, page_size: int) -> int:
    """The number of the first page that a token at `position` or later sees in a group that keeps so much."""
    return 0 if keep is None else max(0, position + 1 - keep) // page_size


def pages_held(keeps: Sequence[int | None], num_tokens: int, *, page_size: int, ahead: int) -> int:
    """The most pages that a sequence of so many tokens holds at once.

    Args:
        keeps: of each cache group, how many positions back a token sees, itself included; None is all.
        num_tokens: tokens of the sequence.
        page_size: tokens of a page.
        ahead: groups with a window cover so many positions beyond what is computed: the tokens of a step.
    """

    def span(keep: int | None) -> int:
        # what is seen and what is about to be written, and as it may begin anywhere in a page, a page more but for a token
        return num_tokens if keep is None else min(num_tokens, keep - 1 + ahead + page_size - 1)

    return sum(-(-span(keep) // page_size) for keep in keeps)


def longest_sequence(keeps: Sequence[int | None], num_pages: int, *, page_size: int, ahead: int, most: int) -> int:
    """The tokens, up to `most`, of the longest sequence that so many pages hold."""
    return bisect_right(
        range(1, most + 1),
        num_pages,
        key=lambda num_tokens: pages_held(keeps, num_tokens, page_size=page_size, ahead=ahead),
    )


def tokens_held(keeps: Sequence[int | None], num_pages: int, *, page_size: int, ahead: int, max_model_len: int) -> int:
    """Tokens of all the sequences of `max_model_len` that so many pages hold together."""
    if all(keep is None for keep in keeps):
        return num_pages // len(keeps) * page_size
    per_sequence = pages_held(keeps, max_model_len, page_size=page_size, ahead=ahead)
    return num_pages * max_model_len // per_sequence
