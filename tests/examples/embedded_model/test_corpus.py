"""The corpus: the same for the same seed, varied, and free of leftovers and slips."""

import itertools
import json
import random
import re

import pytest

from examples.embedded_model import tool_chat
from examples.embedded_model.adventures import PLOTS
from examples.embedded_model.corpus import documents
from examples.embedded_model.stories import story
from examples.embedded_model.sums import sum_turn
from examples.embedded_model.templates import article
from examples.embedded_model.world import RESIDENTS, facts


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(itertools.islice(documents(7), 1500))


@pytest.fixture(scope="module")
def stories() -> list[str]:
    rng = random.Random(7)
    return [story(rng) for _ in range(600)]


def test_a_seed_gives_the_same_documents_and_another_seed_others(texts):
    assert list(itertools.islice(documents(7), 50)) == texts[:50]
    assert list(itertools.islice(documents(8), 50)) != texts[:50]


def test_documents_hold_no_unresolved_marks(texts):
    for text in texts:
        assert not re.search(r"\b[Aa]~|\{\w+\}|\{\d\}|  |\bNone\b", text), text
        assert text == text.strip()


def test_stories_hold_no_brackets_or_doubled_marks(stories):
    for text in stories:
        assert not re.search(r"[\[\]{}|~]| [,.!?]|[.,]{2}|\b(\w+) \1\b(?<!had had)", text), text
        assert text.count('"') % 2 == 0, text
        assert text[-1] in '.!"', text


def test_articles_fit_their_words(stories):
    for text in stories:
        for found, word in re.findall(r"\b([Aa]n?) (\w+)", text):
            assert found.lower() == article(word), (found, word)


def test_stories_are_varied(stories):
    words = [word for text in stories for word in re.findall(r"\w+", text.lower())]
    assert len(set(itertools.pairwise(words))) > 6000
    assert len(set(words)) > 1000
    assert len({text[:60] for text in stories}) > 500
    assert len(set(stories)) == len(stories)


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_every_plot_can_be_told_from_every_row(plot):
    rng = random.Random(plot.name)
    told = {story(rng, plot=plot, short=short) for short in (True, False) for _ in range(8 * len(plot.cast))}
    assert len(told) == 16 * len(plot.cast)


def test_sums_are_right():
    rng = random.Random(1)
    for _ in range(3000):
        question, answer = sum_turn(rng)
        for left, sign, right, result in re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)", answer):
            assert int(result) == {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](int(left), int(right))
            assert {left, right} <= set(re.findall(r"\d+", question))


def test_the_world_is_consistent():
    for field in ("name", "kind", "home", "colour", "food", "job"):
        assert len({getattr(who, field) for who in RESIDENTS}) == len(RESIDENTS), field
    asked = [question for questions, _ in facts() for question in questions]
    assert len(asked) == len(set(asked)) > 150


def test_tool_calls_follow_the_schema_they_were_given():
    rng = random.Random(2)
    python = {"string": str, "integer": int}
    for _ in range(200):
        messages, tools = tool_chat.conversation(rng)
        functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        for message in messages:
            for call in message.get("tool_calls", ()):
                function = call["function"]
                properties = functions[function["name"]]["properties"]
                assert list(function["arguments"]) == functions[function["name"]]["required"]
                for name, value in function["arguments"].items():
                    assert isinstance(value, python[properties[name]["type"]])
                json.dumps(call)
