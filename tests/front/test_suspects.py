"""Who is tried alone, in which order, and who is cleared."""

from __future__ import annotations

import pytest

from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.front.book import Entry
from jaxengine.front.suspects import PAST, Suspects
from tests.harness import make_request


def entry(name: str, tokens: int = 0) -> Entry:
    made = Entry(make_request(name, range(1, 5), max_tokens=50))
    grow(made, tokens)
    return made


def grow(entry: Entry, tokens: int) -> None:
    position = entry.progress
    entry.take(SequenceUpdate(entry.request_id, 0, (9,) * tokens, (None,) * tokens, Admission(), position=position))


@pytest.mark.parametrize(("cause", "deaths"), [("step", 2), ("signal", 2), ("killed", 4), ("silence", 4)])
def test_deaths_from_outside_say_less(cause: str, deaths: int) -> None:
    suspects, one = Suspects(), entry("one")
    for _ in range(deaths):
        assert suspects.to_try([one]) == []
        suspects.note_death([one], cause, on_trial=None)  # type: ignore[arg-type]
    assert suspects.to_try([one]) == [one]


@pytest.mark.parametrize(("cause", "trials"), [("step", 1), ("killed", 2)])
def test_what_may_have_come_from_outside_convicts_nobody_at_once(cause: str, trials: int) -> None:
    suspects, one = Suspects(), entry("one")
    while not suspects.to_try([one]):
        suspects.note_death([one], cause, on_trial=None)  # type: ignore[arg-type]
    for _ in range(trials - 1):
        assert suspects.note_death([one], cause, on_trial=one) is None  # type: ignore[arg-type]
        assert suspects.to_try([one]) == [one]
    assert suspects.note_death([one], cause, on_trial=one) is one  # type: ignore[arg-type]


def test_a_death_before_the_trial_began_says_less() -> None:
    suspects, one = Suspects(), entry("one")
    for _ in range(2):
        suspects.note_death([one], "step", on_trial=None)
    assert suspects.note_death([], "step", on_trial=one) is None
    assert suspects.note_death([], "step", on_trial=one) is one


def test_those_that_had_yielded_least_come_first_and_of_them_the_latest() -> None:
    suspects = Suspects()
    old, first, second = entry("old", tokens=7), entry("first"), entry("second")
    for _ in range(2):
        suspects.note_death([old, first, second], "step", on_trial=None)
    assert suspects.to_try([old, first, second]) == [second, first, old]


def test_one_that_was_tried_comes_behind_the_others() -> None:
    suspects, first, second = Suspects(), entry("first"), entry("second")
    for _ in range(4):
        suspects.note_death([first, second], "killed", on_trial=None)
    assert suspects.to_try([first, second]) == [second, first]
    suspects.note_death([second], "killed", on_trial=second)
    assert suspects.to_try([first, second]) == [first, second]


def test_who_gets_past_the_point_is_cleared() -> None:
    suspects, one = Suspects(), entry("one", tokens=4)
    suspects.note_death([one], "step", on_trial=None)
    grow(one, PAST - 1)
    assert not suspects.clears(one)
    grow(one, 1)
    assert suspects.clears(one)
    suspects.note_death([one], "step", on_trial=None)
    assert suspects.to_try([one]) == []


def test_a_culprit_explains_what_happened_to_the_others() -> None:
    suspects, guilty, other = Suspects(), entry("guilty"), entry("other")
    for _ in range(2):
        suspects.note_death([guilty, other], "step", on_trial=None)
    assert suspects.note_death([guilty], "step", on_trial=guilty) is guilty
    assert suspects.to_try([other]) == []
    assert not suspects
