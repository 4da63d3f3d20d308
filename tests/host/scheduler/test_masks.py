"""Bitmasks agree with sets, and a request that may sample nothing is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxengine.contract.request import ThinkingBudget
from jaxengine.errors import RequestError
from jaxengine.host.scheduler.masks import TokenMask, masks_anything
from tests.fakes import allowed_tokens
from tests.harness import make_request

VOCAB = 70
TOKENS = st.integers(0, VOCAB - 1)
BUDGETS = st.builds(
    ThinkingBudget, st.integers(0, 4), begin=st.just(2), end=st.sampled_from([(4,), (7, 9, 4)]), opened=st.booleans()
)


def tokens_of(mask: np.ndarray) -> set[int]:
    return {token for token in range(len(mask) * 32) if mask[token // 32] >> (token % 32) & 1}


@given(data=st.data())
def test_a_mask_allows_what_sets_allow(data: st.DataObject) -> None:
    request = make_request(
        "a",
        [1],
        max_tokens=9,
        eos_token_id=data.draw(st.sampled_from([None, 3])),
        bad_words=tuple(
            map(tuple, data.draw(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), max_size=4)))
        ),
        min_tokens=data.draw(st.integers(0, 3)),
        stop_token_ids=data.draw(st.lists(st.integers(0, 4), max_size=2)),
        allowed_token_ids=data.draw(st.none() | st.lists(TOKENS, min_size=6, max_size=9, unique=True)),
        ignore_eos=data.draw(st.booleans()),
        thinking=data.draw(st.none() | BUDGETS),
    )
    try:
        mask = TokenMask(request, VOCAB)
    except RequestError:
        assert not (allowed_tokens(request, [], VOCAB) and allowed_tokens(request, [0] * 9, VOCAB))
        return
    output = data.draw(st.lists(st.integers(0, 4), max_size=6))
    allowed = mask.allowed(np.array(output, np.int32))
    found = set(range(VOCAB)) if allowed is None else tokens_of(allowed)
    assert found == allowed_tokens(request, output, VOCAB)


def test_bits_are_laid_out_from_the_lowest_of_word_zero() -> None:
    request = make_request("a", [1], allowed_token_ids=[0, 33, 69])
    mask = TokenMask(request, VOCAB).allowed(np.zeros(0, np.int32))
    assert mask is not None
    assert mask.dtype == np.uint32
    assert mask.tolist() == [1, 1 << 1, 1 << 5]


def test_a_mask_that_does_not_change_is_one_array() -> None:
    mask = TokenMask(make_request("a", [1], min_tokens=2, eos_token_id=3, max_tokens=9), VOCAB)
    early = [mask.allowed(np.zeros(length, np.int32)) for length in range(2)]
    assert early[0] is early[1]
    assert mask.allowed(np.zeros(2, np.int32)) is None


def test_a_bad_word_of_several_tokens_bans_its_end_after_its_beginning_only() -> None:
    mask = TokenMask(make_request("a", [8, 9], bad_words=((8, 9, 10),)), VOCAB)
    banned = mask.allowed(np.array([5, 8, 9], np.int32))
    assert banned is not None
    assert set(range(VOCAB)) - tokens_of(banned) == {10}
    assert mask.allowed(np.array([9], np.int32)) is None, "the prompt does not count"
    assert mask.allowed(np.array([8, 9, 5], np.int32)) is None


def test_a_bad_word_is_let_through_when_nothing_else_is_allowed() -> None:
    mask = TokenMask(make_request("a", [1], bad_words=((8, 9),), allowed_token_ids=[9]), VOCAB)
    allowed = mask.allowed(np.array([8], np.int32))
    assert allowed is not None
    assert tokens_of(allowed) == {9}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allowed_token_ids": [3], "eos_token_id": 3, "min_tokens": 1}, "min_tokens=1 rules out"),
        ({"allowed_token_ids": [3], "bad_words": ((3,),)}, "bad_words rules out every token"),
    ],
)
def test_a_request_that_may_sample_nothing_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        TokenMask(make_request("a", [1], **options), VOCAB)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"min_tokens": 2}, False),
        ({"min_tokens": 2, "eos_token_id": 3}, True),
        ({"min_tokens": 2, "stop_token_ids": [3]}, True),
        ({"eos_token_id": 3}, False),
        ({"bad_words": ((3,),)}, True),
        ({"allowed_token_ids": [3]}, True),
    ],
)
def test_who_needs_a_mask(options: dict[str, object], expected: bool) -> None:
    assert masks_anything(make_request("a", [1], **options)) is expected  # type: ignore[arg-type]


def test_min_tokens_rules_out_every_end_of_sequence_also_where_ends_are_ignored() -> None:
    ends = {"eos_token_id": 3, "more_eos_ids": (4, 5), "min_tokens": 2, "max_tokens": 9}
    for ignore in (False, True):
        request = make_request("a", [1], **ends, ignore_eos=ignore)
        assert masks_anything(request)
        early = TokenMask(request, VOCAB).allowed(np.zeros(1, np.int32))
        assert early is not None
        assert not {3, 4, 5} & tokens_of(early)
        assert request.stop_token_ids == (frozenset() if ignore else {4, 5})


@pytest.mark.parametrize(
    ("opened", "output", "forced"),
    [
        (True, [5, 6], None),
        (True, [5, 6, 5], 7),
        (True, [5, 6, 5, 7], 4),
        (True, [5, 4, 5, 5, 5], None),  # it ended of itself
        (True, [5, 6, 5, 7, 4, 5, 5], None),  # what follows is no thought
        (False, [5, 6, 5, 5, 5], None),  # it does not think
        (False, [2, 5, 6, 5], 7),
    ],
)
def test_thoughts_end_when_they_reach_their_budget(opened: bool, output: list[int], forced: int | None) -> None:
    budget = ThinkingBudget(3, begin=2, end=(7, 4), opened=opened)
    request = make_request("a", [1], thinking=budget, allowed_token_ids=[5, 6], max_tokens=99)
    mask = TokenMask(request, VOCAB)
    assert mask.changes
    allowed = mask.allowed(np.array(output, np.int32))
    assert allowed is not None
    assert tokens_of(allowed) == ({5, 6} if forced is None else {forced})
