"""Beam search against enumerating everything."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from jaxengine.contract.outputs import Logprob, PositionLogprobs
from jaxengine.front.beam_search import Beams, BeamSearchSequence

VOCAB, END = 4, 3


def language(seed: int) -> dict[tuple[int, ...], PositionLogprobs]:
    """Made-up log probabilities of every next token after every text of up to three tokens."""
    chance = random.Random(seed)
    table = {}
    for length in range(3):
        for text in itertools.product(range(VOCAB), repeat=length):
            weights = [chance.random() for _ in range(VOCAB)]
            table[text] = {token: Logprob(math.log(weight / sum(weights))) for token, weight in enumerate(weights)}
    return table


def search(
    table: dict[tuple[int, ...], PositionLogprobs], *, width: int, penalty: float, keep_end: bool = True
) -> Beams:
    beams = Beams(
        width=width,
        length_penalty=penalty,
        end_ids=frozenset([END]),
        keep_end=keep_end,
        allowed=None,
        active=[BeamSearchSequence((9,))],
    )
    for _ in range(3):
        beams.advance([table[beam.tokens[1:]] for beam in beams.active])
    return beams


def every(table: dict[tuple[int, ...], PositionLogprobs], penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """All texts that end with END or have three tokens, by score."""
    found = []
    for length in (1, 2, 3):
        for text in itertools.product(range(VOCAB), repeat=length):
            ended = text[-1] == END
            if END in text[:-1] or not (ended or length == 3):
                continue
            total = sum(table[text[:at]][text[at]].logprob for at in range(length))
            found.append((total / (1 + length - ended) ** penalty, (9, *text)))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_wide_search_finds_the_best_of_all(seed: int, penalty: float) -> None:
    table = language(seed)
    best = search(table, width=40, penalty=penalty).best()
    expected = every(table, penalty)
    assert [beam.tokens for beam in best] == [tokens for _, tokens in expected][:40]
    assert {beam.finish_reason for beam in best if beam.tokens[-1] == END} == {"stop"}
    assert all(beam.finish_reason is None for beam in best if beam.tokens[-1] != END)


def test_a_narrow_search_keeps_its_width() -> None:
    beams = search(language(1), width=2, penalty=1.0)
    assert len(beams.active) == 2
    best = beams.best()
    assert len(best) == 2
    assert beams.score(best[0]) >= beams.score(best[1])


def test_the_end_token_is_left_out_unless_asked_for() -> None:
    table = language(2)
    kept = search(table, width=40, penalty=1.0).best()
    dropped = search(table, width=40, penalty=1.0, keep_end=False).best()
    strip = [beam.tokens[:-1] if beam.finish_reason == "stop" else beam.tokens for beam in kept]
    assert [beam.tokens for beam in dropped] == strip
    assert [beam.cum_logprob for beam in dropped] == [beam.cum_logprob for beam in kept]


def test_only_allowed_tokens_are_tried() -> None:
    beams = Beams(
        width=4,
        length_penalty=1.0,
        end_ids=frozenset(),
        keep_end=False,
        allowed=frozenset([2]),
        active=[BeamSearchSequence(())],
    )
    beams.advance([language(0)[()]])
    assert [beam.tokens for beam in beams.active] == [(2,)]
