"""The template language of the corpus."""

import random

import pytest

from examples.embedded_model.templates import a, expand, listing


@pytest.mark.parametrize(
    ("noun", "phrase"),
    [
        ("apple", "an apple"),
        ("fox", "a fox"),
        ("hour", "an hour"),
        ("honest owl", "an honest owl"),
        ("unicorn", "a unicorn"),
        ("umbrella", "an umbrella"),
        ("useful map", "a useful map"),
        ("8", "an 8"),
        ("7", "a 7"),
    ],
)
def test_article(noun, phrase):
    assert a(noun) == phrase


def test_listing():
    assert [listing(items) for items in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b, and c"]


def test_branches_nest_slots_repeat_and_sentences_get_capitals():
    rng = random.Random(0)
    seen = {
        expand("[{who}|the [old|young] {who}] ran. a~ {thing} fell.", {"who": "fox", "thing": ["owl", "cup"]}, rng)
        for _ in range(99)
    }
    assert "The old fox ran. An owl fell." in seen
    assert "Fox ran. A cup fell." in seen
    assert len(seen) == 6


def test_an_empty_branch_leaves_no_gap():
    assert expand("He ran[| ]  home [|] .", {}, random.Random(0)) == "He ran home."


def test_a_missing_slot_raises():
    with pytest.raises(KeyError):
        expand("{nobody}", {}, random.Random(0))
