"""What was delivered is noted once, in order, and nothing is lost in silence."""

from __future__ import annotations

import pytest

from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.front.book import Book, Entry, MissingTokensError
from tests.harness import make_request


def update(*tokens: int, position: int, index: int = 0, finish_reason: str | None = None) -> SequenceUpdate:
    return SequenceUpdate(
        "a", index, tokens, (None,) * len(tokens), Admission(), position=position, finish_reason=finish_reason
    )


def test_what_was_delivered_before_is_left_out() -> None:
    entry = Entry(make_request("a", range(1, 5)))
    first = update(7, 8, position=0)
    assert entry.take(first) is first
    assert entry.take(update(7, 8, position=0)) is None
    overlapping = entry.take(update(8, 9, position=1))
    assert overlapping is not None
    assert (overlapping.token_ids, overlapping.position) == ((9,), 2)
    [history] = entry.resumed().history
    assert history.token_ids == (7, 8, 9)


def test_tokens_that_are_missing_are_an_error() -> None:
    entry = Entry(make_request("a", range(1, 5)))
    with pytest.raises(MissingTokensError, match="2 tokens of request a were lost"):
        entry.take(update(9, position=2))


def test_a_sequence_that_has_ended_takes_nothing() -> None:
    entry = Entry(make_request("a", range(1, 5), n=2))
    entry.take(update(7, position=0, finish_reason="stop"))
    assert entry.take(update(8, position=1)) is None
    assert not entry.ended
    entry.stop(1)
    assert entry.ended


def test_a_request_that_yielded_nothing_goes_on_as_it_came() -> None:
    request = make_request("a", range(1, 5))
    assert Entry(request).resumed() == request


def test_only_the_owner_of_an_id_closes_it() -> None:
    book = Book()
    first = book.open(make_request("a", range(1, 5)))
    assert book.close(first)
    second = book.open(make_request("a", range(1, 5)))
    assert not book.close(first)
    assert book.find("a") is second
