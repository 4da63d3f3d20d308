"""What is proposed to follow, by what followed before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxengine.host.scheduler import ngram
from jaxengine.options.speculation import NgramSpeculation


def propose(tokens: list[int], *, num_tokens: int = 3, shortest: int = 1, longest: int = 3) -> tuple[int, ...]:
    speculation = NgramSpeculation(num_tokens=num_tokens, min_length=shortest, max_length=longest)
    return ngram.propose(np.array(tokens, np.int32), speculation)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], (3, 4, 5)),
        ([1, 2, 3, 9, 2, 7, 1, 2], (3, 9, 2)),  # two tokens match there, one elsewhere
        ([2, 8, 5, 2, 9, 5, 2], (9, 5, 2)),  # as long a match later on
        ([1, 1], (1,)),
        ([1, 1, 1], (1,)),
        ([1, 2, 3], ()),
        ([1], ()),
    ],
)
def test_the_longest_match_and_of_these_the_last(tokens: list[int], expected: tuple[int, ...]) -> None:
    assert propose(tokens) == expected


def test_a_match_must_be_long_enough() -> None:
    assert propose([1, 2, 3, 9, 2], shortest=2) == ()
    assert propose([1, 2, 3, 1, 2], shortest=2) == (3, 1, 2)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 3), st.integers(0, 3), st.integers(1, 4))
def test_it_is_what_a_plain_search_finds(tokens: list[int], shortest: int, more: int, count: int) -> None:
    longest = shortest + more
    found: tuple[int, ...] = ()
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        tail = tokens[-length:]
        starts = [at for at in range(len(tokens) - length) if tokens[at : at + length] == tail]
        if starts:
            found = tuple(tokens[starts[-1] + length :][:count])
            break
    assert propose(tokens, num_tokens=count, shortest=shortest, longest=longest) == found
