"""The short way to make what is made for every token says the same as the constructor that names the fields."""

from __future__ import annotations

from jaxengine.contract.batch import ONE, Row


def test_the_row_of_a_next_token() -> None:
    row = Row.next_token(7, 42)
    assert type(row) is Row
    assert row._asdict() == {"slot": 7, "tokens": None, "num_tokens": 1, "start": 42, "want": ONE}
    assert row == Row(slot=7, tokens=None, num_tokens=1, start=42, want=ONE)
