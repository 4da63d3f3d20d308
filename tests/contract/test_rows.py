"""Rows by field say what rows one by one say."""

from __future__ import annotations

import pickle

from jaxengine.contract.rows import ONE, Row, Rows, Sample


def test_rows_come_out_as_they_went_in() -> None:
    given = [Row(3, (5, 6, 7), 3, 10, None), Row(1, None, 1, 4, ONE), Row(2, (8, 9), 2, 0, Sample(2))]
    rows = Rows(given)
    assert list(rows) == given
    assert (len(rows), rows[1], rows[-1]) == (3, given[1], given[2])
    assert rows == Rows(given) != Rows(given[:2])
    assert list(pickle.loads(pickle.dumps(rows))) == given


def test_next_tokens_are_rows_of_one_token_that_the_device_has() -> None:
    rows = Rows([Row(3, (5,), 1, 10, None)])
    rows.add_next_tokens([7, 9], [42, 1])
    assert list(rows)[1:] == [
        Row(slot=slot, tokens=None, num_tokens=1, start=start, want=ONE) for slot, start in ((7, 42), (9, 1))
    ]
