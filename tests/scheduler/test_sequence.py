"""What a sequence still has to compute, and by which kind of row."""

from __future__ import annotations

import pytest

from jaxengine.scheduler.sequence import Group, Sequence
from tests.harness import make_request


def make_sequence(
    length: int = 10, *, index: int = 0, deterministic: bool = False, max_tokens: int = 200, **options: object
) -> Sequence:
    request = make_request("a", range(length), max_tokens=max_tokens, **options)  # type: ignore[arg-type]
    group = Group(request, number=0, max_tokens=max_tokens, mask=None)
    return Sequence(group, index=index, sequence_id=0, urgency=(0, index), deterministic=deterministic)


def test_tokens_grow_and_earlier_views_stay_as_they_were() -> None:
    sequence = make_sequence(3)
    early = sequence.tokens
    for token in range(100, 250):
        sequence.append(token)
    assert early.tolist() == [0, 1, 2]
    assert sequence.tokens.tolist() == [0, 1, 2, *range(100, 250)]
    assert (sequence.last_token, sequence.num_outputs) == (249, 150)


@pytest.mark.parametrize(
    ("index", "deterministic", "options", "num_computed", "outputs", "expected"),
    [
        (0, False, {}, 0, 0, 10),
        (0, False, {}, 4, 0, 10),
        (0, False, {}, 9, 0, 9),  # one left: a decode row
        (0, False, {}, 0, 3, 13),  # after a preemption output is prompt-like
        (0, False, {"prompt_logprobs": 1}, 0, 0, 0),
        (1, False, {"prompt_logprobs": 1}, 0, 0, 10),
        (0, True, {}, 0, 0, 10),
        (0, True, {}, 9, 0, 10),
        (0, True, {}, 0, 3, 10),
        (1, True, {}, 0, 0, 9),
        (0, True, {"prompt_logprobs": 1}, 0, 0, 0),
        (1, True, {"prompt_logprobs": 1}, 0, 0, 0),
    ],
)
def test_where_prefill_rows_end(
    index: int, deterministic: bool, options: dict[str, object], num_computed: int, outputs: int, expected: int
) -> None:
    sequence = make_sequence(index=index, deterministic=deterministic, **options)
    for token in range(outputs):
        sequence.append(token)
    sequence.num_computed = num_computed
    assert sequence.prefill_end == expected


def test_prompt_logprobs_that_are_known_are_prefilled_again() -> None:
    sequence = make_sequence(prompt_logprobs=1)
    sequence.num_prompt_logprobs = 4
    assert sequence.prefill_end == 4
    assert sequence.max_cached == 4
    sequence.num_prompt_logprobs = 9
    assert sequence.prefill_end == 10


def test_a_row_reports_the_next_prompt_token_once() -> None:
    sequence = make_sequence(prompt_logprobs=1)
    sequence.num_prompt_logprobs = 4
    targets = [(row := sequence.row_sampling(end)) and row.target for end in range(1, 10)]
    assert targets == [None, None, None, None, 5, 6, 7, 8, 9]
    last = sequence.row_sampling(10)
    assert last is not None
    assert last.target is None


@pytest.mark.parametrize(("deterministic", "expected"), [(False, True), (True, False)])
def test_the_last_prompt_token_decodes_unless_it_is_pinned_to_a_prefill_row(
    deterministic: bool, expected: bool
) -> None:
    sequence = make_sequence(deterministic=deterministic)
    assert not sequence.decodes
    sequence.num_computed = 9
    assert sequence.decodes is expected
