"""Sequences with a grammar through the scheduler: what comes out has the form that was asked for, whatever happens beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.grammar.matching import Grammar, GrammarError, GrammarState
from jaxengine.host.scheduler.changing_masks import NOTHING_LEFT
from tests.grammar.characters import Grammars, character_grammars, text_of
from tests.harness import EOS, Rig, make_request

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "yes"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    grammars = character_grammars()
    yield grammars
    grammars.close()


def regex(grammars: Grammars, pattern: str) -> Grammar:
    return grammars.compile(StructuredOutputsParams(regex=pattern))


def test_output_parses_and_stops_at_the_end_of_the_grammar(grammars: Grammars) -> None:
    rig = Rig()
    grammar = grammars.compile(StructuredOutputsParams(json=SCHEMA))
    rig.add(make_request("r", [1, 2, 3], max_tokens=80, eos_token_id=EOS, grammar=grammar, n=3, seed=5))
    rig.run()
    rig.assert_oracle()
    for index in range(3):
        result = rig.collected["r", index].expected()
        assert result.finish_reason == "stop"
        assert result.tokens[-1] == EOS
        assert set(json.loads(text_of(result.tokens))) == {"a", "b"}


def test_max_tokens_cuts_with_reason_length(grammars: Grammars) -> None:
    rig = Rig()
    rig.add(make_request("r", [1], max_tokens=4, eos_token_id=EOS, grammar=regex(grammars, "[a-z]{9}")))
    rig.run()
    result = rig.collected["r", 0].expected()
    assert result.finish_reason == "length"
    assert re.fullmatch("[a-z]{4}", text_of(result.tokens))


def test_min_tokens_delays_the_end_or_says_that_the_grammar_does_not_let_it(grammars: Grammars) -> None:
    rig = Rig()
    long_enough = regex(grammars, "[ab]{1,20}")
    too_short = regex(grammars, "[ab]{3}")
    for seed in range(4):
        options = {"max_tokens": 30, "min_tokens": 7, "eos_token_id": EOS, "temperature": 1.0, "seed": seed}
        rig.add(make_request(f"long {seed}", [1], grammar=long_enough, **options))
        rig.add(make_request(f"short {seed}", [1], grammar=too_short, **options))
    rig.run()
    rig.assert_oracle()
    for seed in range(4):
        assert len(rig.collected[f"long {seed}", 0].tokens) >= 8
        short = rig.collected[f"short {seed}", 0].expected()
        assert (len(short.tokens), short.finish_reason, short.stop_reason) == (3, "error", NOTHING_LEFT)


def test_ignore_eos_ends_only_where_nothing_may_follow(grammars: Grammars) -> None:
    rig = Rig()
    rig.add(make_request("r", [1], max_tokens=40, eos_token_id=EOS, ignore_eos=True, grammar=regex(grammars, "a{2,5}")))
    rig.run()
    result = rig.collected["r", 0].expected()
    assert (text_of(result.tokens), result.finish_reason) == ("aaaaa", "stop")


@pytest.mark.parametrize(("pattern", "reason"), [("[b-z]{6}", "stop"), ("[b-z]{6}-", "error")])
def test_masks_of_ids_combine_with_the_grammar_which_may_end(grammars: Grammars, pattern: str, reason: str) -> None:
    """The end of sequence is none of these ids. Where they leave nothing, that is said."""
    rig = Rig()
    letters = [ord(letter) - 32 for letter in "abc"]
    grammar = regex(grammars, pattern)
    rig.add(make_request("r", [1], max_tokens=20, eos_token_id=EOS, allowed_token_ids=letters, grammar=grammar))
    rig.run()
    rig.assert_oracle()
    result = rig.collected["r", 0].expected()
    assert (result.finish_reason, result.stop_reason) == (reason, NOTHING_LEFT if reason == "error" else None)
    assert re.fullmatch("[bc]{6}", text_of(result.tokens[:6]))
    assert len(result.tokens) == (7 if reason == "stop" else 6)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_mix_gives_the_oracles_answer(data: st.DataObject, grammars: Grammars) -> None:
    """Preemption and replay (few pages), chunked prompts, n, shared prefixes, other requests beside."""
    forms = [None, "[0-9]{1,9}(,[a-f]{2}){0,3}", "(ab|ac)*z?", '"[^"]{0,12}"']
    rig = Rig(
        num_pages=data.draw(st.integers(26, 40)),
        caching=data.draw(st.booleans()),
        deterministic=data.draw(st.booleans()),
    )
    for number in range(data.draw(st.integers(2, 6))):
        form = data.draw(st.sampled_from(forms))
        n = data.draw(st.integers(1, 3))
        request = make_request(
            str(number),
            data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=20)),
            max_tokens=data.draw(st.integers(1, 30)),
            eos_token_id=EOS,
            n=n,
            seed=number,
            ignore_eos=data.draw(st.booleans()),
            grammar=None if form is None else regex(grammars, form),
        )
        rig.add(request)
    rig.run()
    rig.assert_oracle()


def test_rows_that_only_score_ask_the_grammar_nothing(grammars: Grammars) -> None:
    """In deterministic mode one step may have several such rows of a sequence, and a grammar's state answers once at a time."""
    words = regex(grammars, "[a-z]{3,9}")
    rig = Rig(deterministic=True, max_num_seqs=2, max_num_batched_tokens=8)
    for name in ("a", "b"):
        rig.add(make_request(name, [3] * 5, max_tokens=12, eos_token_id=EOS, grammar=words))
    rig.add(make_request("scored", range(5), eos_token_id=EOS, grammar=words, prompt_logprobs=1))
    rig.run()
    rig.assert_oracle()


class FailingGrammar:
    """A grammar whose sequences cannot go on after some tokens."""

    def __init__(self, grammar: Grammar, *, after: int) -> None:
        self._grammar = grammar
        self._after = after

    def start(self, *, may_end: bool) -> GrammarState:
        state = self._grammar.start(may_end=may_end)
        advance = state.advance

        def failing(output: np.ndarray) -> None:
            advance(output)
            if len(output) == self._after:
                raise GrammarError("too many states")

        state.advance = failing  # type: ignore[method-assign]
        return state


def test_a_grammar_that_fails_ends_its_sequence_alone(grammars: Grammars) -> None:
    rig = Rig()
    bad = FailingGrammar(regex(grammars, "[0-9]{12}"), after=3)
    options = {"max_tokens": 20, "eos_token_id": EOS}
    rig.add(make_request("bad", [1, 2], grammar=bad, **options))  # type: ignore[arg-type]
    rig.add(make_request("good", [1, 2], grammar=regex(grammars, "[a-z]{12}"), **options))  # type: ignore[arg-type]
    rig.run()
    assert len(rig.collected["bad", 0].tokens) == 3
    assert rig.collected["bad", 0].finish_reason == "error"
    assert rig.collected["good", 0].finish_reason == "stop"


@pytest.mark.parametrize("after", [0, 1])
def test_all_sequences_of_a_request_may_fail(grammars: Grammars, after: int) -> None:
    """The first one, which the others wait for, among them."""
    rig = Rig()
    bad = FailingGrammar(regex(grammars, "[0-9]{12}"), after=after)
    rig.add(make_request("bad", [1, 2, 3, 4, 5, 6], n=3, max_tokens=20, eos_token_id=EOS, grammar=bad))  # type: ignore[arg-type]
    rig.run()
    ended = [rig.collected["bad", index] for index in range(3)]
    assert [(len(sequence.tokens), sequence.finish_reason) for sequence in ended] == [(after, "error")] * 3
