"""What a sequence still has to compute, and what is asked of its rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxengine.contract.pooling import Pooled
from jaxengine.contract.rows import Pool, Sample, Score
from jaxengine.host.scheduler.sequence import Sequence
from jaxengine.options.speculation import NgramSpeculation
from tests.harness import make_request, make_sequence

SPECULATION = NgramSpeculation(num_tokens=3)


def of_length(
    length: int = 10, *, index: int = 0, deterministic: bool = False, max_tokens: int = 200, **options: object
) -> Sequence:
    request = make_request("a", range(length), max_tokens=max_tokens, **options)  # type: ignore[arg-type]
    return make_sequence(request, index=index, deterministic=deterministic, speculation=SPECULATION)


def test_tokens_grow_and_earlier_views_stay_as_they_were() -> None:
    sequence = of_length(3)
    early = sequence.tokens
    for token in range(100, 250):
        sequence.append(token)
    assert early.tolist() == [0, 1, 2]
    assert sequence.tokens.tolist() == [0, 1, 2, *range(100, 250)]
    assert sequence.num_tokens - sequence.num_prompt == 150


@pytest.mark.parametrize(
    ("index", "deterministic", "options", "outputs", "row_end", "max_cached"),
    [
        (0, False, {}, 0, 10, 9),
        (0, False, {}, 3, 13, 12),  # after a preemption output is prompt-like
        (0, False, {"prompt_logprobs": 1}, 0, 10, 0),
        (1, False, {"prompt_logprobs": 1}, 0, 10, 9),
        (0, True, {}, 0, 10, 8),  # no token of a prompt is left alone
        (0, True, {}, 3, 10, 8),
        (1, True, {}, 0, 10, 8),
        (0, True, {"prompt_logprobs": 1}, 0, 0, 0),
        (1, True, {"prompt_logprobs": 1}, 0, 10, 8),
    ],
)
def test_where_rows_of_several_tokens_end_and_what_may_come_from_the_cache(
    index: int, deterministic: bool, options: dict[str, object], outputs: int, row_end: int, max_cached: int
) -> None:
    sequence = of_length(index=index, deterministic=deterministic, **options)
    for token in range(outputs):
        sequence.append(token)
    assert (sequence.row_end, sequence.max_cached) == (row_end, max_cached)


def test_what_has_been_scored_is_computed_again_and_not_scored_again() -> None:
    sequence = of_length(prompt_logprobs=1)
    assert sequence.want(4) == Score((1, 2, 3, 4), sample=False)
    sequence.forget_pages()  # preempted
    assert (sequence.row_end, sequence.max_cached) == (4, 4)
    assert sequence.want(4) is None
    sequence.num_computed = 4
    assert sequence.want(10) == Score((5, 6, 7, 8, 9), sample=True)
    assert sequence.max_cached == 9


def test_only_the_end_of_a_prompt_is_sampled_or_pooled() -> None:
    sequence = of_length()
    assert sequence.want(9) is None
    assert sequence.want(10) == Sample()
    assert sequence.want(12, num_drafts=2) == Sample(3)
    request = replace(make_request("a", range(10), max_tokens=1), pooling=Pooled(task="embed"))
    pooled = make_sequence(request, speculation=SPECULATION)
    assert pooled.want(9) is None
    assert pooled.want(10) == Pool()
    assert pooled.drafts is None


@pytest.mark.parametrize(
    ("pending", "drafted", "proposal", "waits"),
    [(0, 0, (), False), (1, 0, (), False), (1, 2, (), True), (1, 0, (5,), True), (0, 0, (5,), False), (2, 0, (), True)],
)
def test_what_cannot_be_planned_before_results_come_back(
    pending: int, drafted: int, proposal: tuple[int, ...], waits: bool
) -> None:
    sequence = of_length(max_tokens=2)
    assert sequence.drafts is not None
    sequence.pending, sequence.ahead, sequence.drafts.proposal = pending, drafted, proposal
    assert sequence.waits is waits
