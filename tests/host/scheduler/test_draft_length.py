"""How many drafts rows carry: as many as bring most tokens for the time of a step."""

from __future__ import annotations

import pytest

from buckets import Bucket, Grid
from jaxengine.contract.draft_costs import DraftCosts
from jaxengine.host.scheduler.draft_length import DraftLength

GRID = Grid([Bucket(4, 1), Bucket(4, 5), Bucket(32, 1), Bucket(32, 5)])
FREE = dict.fromkeys(GRID.buckets, 1.0)
BOUND = {bucket: float(bucket.tokens) for bucket in GRID.buckets}
"""What a step costs: the same whatever is in it, or by its places."""


def chosen(
    length: DraftLength,
    costs: dict[Bucket, float],
    rows: int,
    *,
    drafters: int | None = None,
    prompts: int = 0,
    tokens: int = 160,
) -> int:
    drafters = rows if drafters is None else drafters
    return length.choose(GRID.with_costs(costs), rows, drafters=drafters, num_prompts=prompts, max_tokens=tokens)


def test_all_where_places_cost_nothing_and_none_where_they_cost_all() -> None:
    assert chosen(DraftLength(4), FREE, 4) == 4
    assert chosen(DraftLength(4), BOUND, 4) == 0


def test_drafting_itself_has_to_pay() -> None:
    length = DraftLength(4)
    length.costs = DraftCosts(dict.fromkeys(GRID.buckets, 3.0))
    assert chosen(length, FREE, 4) == 0
    length = DraftLength(4)
    length.costs = DraftCosts(dict.fromkeys(GRID.buckets, 0.1))
    assert chosen(length, FREE, 4) == 4


def test_sampling_behind_every_draft_has_to_pay_too() -> None:
    length = DraftLength(4)
    length.costs = DraftCosts(sample_s={4: 0.5, 12: 0.6, 20: 3.0})
    assert chosen(length, FREE, 4) == 2
    length = DraftLength(4)
    length.costs = DraftCosts(sample_s={4: 0.5, 20: 3.0})
    assert chosen(length, FREE, 4) == 0


def test_a_bucket_that_was_not_measured_drafts_as_the_nearest_one_does() -> None:
    costs = DraftCosts({Bucket(4, 1): 1.0, Bucket(32, 5): 3.0})
    assert [costs.drafting(Bucket(*shape)) for shape in ((4, 1), (4, 5), (32, 4), (32, 5))] == [1.0, 1.0, 3.0, 3.0]


def test_what_promises_hardly_more_goes_on_and_does_not_begin() -> None:
    length, costs = DraftLength(1), {bucket: 1.0 if bucket.tokens == 4 else 1.5 for bucket in GRID.buckets}
    assert chosen(length, costs, 4) == 0, "1.67 tokens for 1.5 times the time are 1.11 times as many"
    length.note(1, 1, 30)
    assert chosen(length, costs, 4) == 1
    length.note(1, 0, 16)
    assert 1.05 < length.gained(1) / 1.5 < 1.15
    assert chosen(length, costs, 4) == 1
    length.note(1, 0, 10)
    assert chosen(length, costs, 4) == 0


def test_nothing_is_drafted_for_rows_that_draft_no_more() -> None:
    assert chosen(DraftLength(4), FREE, 4, drafters=0) == 0
    assert chosen(DraftLength(4), FREE, 4, drafters=0, prompts=1) == 4, "those of prompts may"
    length = DraftLength(4)
    length.costs = DraftCosts(dict.fromkeys(GRID.buckets, 0.5))
    assert chosen(length, FREE, 32, drafters=4) == 0, "they bring the less for what all rows wait"
    assert chosen(length, FREE, 32, drafters=32, tokens=160) == 4
    assert chosen(DraftLength(4), FREE, 32, drafters=4, tokens=48) == 4, "and need the less room"


def test_rows_have_to_fit_a_step_and_leave_half_of_it_to_prompts() -> None:
    assert chosen(DraftLength(4), FREE, 32, tokens=100) == 2
    assert chosen(DraftLength(4), FREE, 32, prompts=1, tokens=100) == 1
    assert chosen(DraftLength(4), FREE, 32, prompts=1, tokens=60) == 0


def test_prompts_alone_are_drafted_behind_only_where_it_pays_as_they_decode() -> None:
    assert chosen(DraftLength(4), FREE, 0, prompts=3) == 4
    assert chosen(DraftLength(4), BOUND, 0, prompts=3) == 0


def test_wrong_drafts_are_given_up_and_tried_again_after_a_while() -> None:
    costs = {bucket: 1.0 + bucket.tokens / 20 for bucket in GRID.buckets}
    length = DraftLength(2)
    assert chosen(length, costs, 4) > 0
    for _ in range(50):
        length.note(2, 0)
        length.forget()
    assert chosen(length, costs, 4) == 0
    for _ in range(2000):
        length.forget()
    assert chosen(length, costs, 4) > 0


def test_what_is_gained_is_counted_by_place_and_not_behind_a_wrong_one() -> None:
    length = DraftLength(3)
    for _ in range(3000):
        length.note(3, 1)
    assert length.gained(1) == pytest.approx(2, abs=0.01)
    assert length.gained(3) == pytest.approx(2, abs=0.02)
