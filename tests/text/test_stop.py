"""Stop strings: the first completed wins, whatever the cuts, and nothing that belongs to one is given away."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxengine.text.stop import StopMatch, StopStrings

SHORT = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=4).map(tuple)


def by_definition(text: str, stops: tuple[str, ...], *, include: bool) -> StopMatch | None:
    """Grow the text by one character until it ends in a stop string; take the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return StopMatch(stop, end if include else end - len(stop))
    return None


def feed(text: str, stops: tuple[str, ...], cuts: list[int], *, include: bool) -> tuple[StopMatch | None, str]:
    """The match, and what a stream would have given away before it was known."""
    search = StopStrings(stops, include=include)
    ends = [*sorted(min(cut, len(text)) for cut in cuts), len(text)]
    done, given = 0, ""
    for end in ends:
        match = search.feed(text[done:end])
        done = end
        if match is not None:
            return match, given
        given = text[: max(len(given), end - search.holdback)]
    return None, given


@settings(deadline=None)
@given(SHORT, STOPS, st.lists(st.integers(0, 30), max_size=8), st.booleans())
def test_the_answer_is_the_definition_whatever_the_cuts(
    text: str, stops: tuple[str, ...], cuts: list[int], include: bool
) -> None:
    match, given_away = feed(text, stops, cuts, include=include)
    assert match == by_definition(text, stops, include=include)
    final = text if match is None else text[: match.keep]
    assert final.startswith(given_away)


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (("b", "ab"), "xab", StopMatch("ab", 1)),
        (("abc", "b"), "xabc", StopMatch("b", 2)),
        (("\n\n",), "x\n\ny", StopMatch("\n\n", 1)),
        (("no",), "text", None),
        ((), "text", None),
    ],
)
def test_examples(stops: tuple[str, ...], text: str, expected: StopMatch | None) -> None:
    assert StopStrings(stops, include=False).feed(text) == expected


def test_a_match_that_ended_before_the_search_began_does_not_count() -> None:
    search = StopStrings(("ab", "bc"), include=True)
    assert search.feed("xab", searching=False) is None
    assert search.feed("c") == StopMatch("bc", 4)


def test_holdback_is_one_less_than_the_longest_stop_string() -> None:
    assert StopStrings(("ab", "abcd"), include=False).holdback == 3
    assert StopStrings(("ab", "abcd"), include=True).holdback == 0
    assert StopStrings((), include=False).holdback == 0
