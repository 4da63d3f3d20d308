"""A grid planned from traffic: the best of a fine ladder, and never without its largest bucket."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from buckets import Bucket, Grid, Limits, candidates, fitted, plan

TPU = Limits(max_num_seqs=256, max_num_batched_tokens=2048, max_model_len=8192, page_size=64, free_tokens=128)
CPU = Limits(max_num_seqs=5, max_num_batched_tokens=64, max_model_len=64, page_size=16)


@pytest.mark.parametrize("limits", [TPU, CPU])
def test_candidates_are_a_finer_ladder_between_the_same_ends(limits: Limits) -> None:
    ladder, default = candidates(limits), plan("tokens", limits)
    assert len(ladder) > len(default)
    assert (ladder.max_rows, ladder.max_tokens) == (default.max_rows, default.max_tokens)
    ordered = ladder.buckets[::-1]
    assert all(one.batch <= other.batch and one.tokens < other.tokens for one, other in pairwise(ordered))


def cost(ladder: Grid, kept: list[Bucket], taken: dict[Bucket, int]) -> float:
    def of(bucket: Bucket) -> float:
        return ladder.costs[min((other for other in kept if other.tokens >= bucket.tokens), key=lambda b: b.tokens)]

    return sum(steps * of(bucket) for bucket, steps in taken.items())


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_no_other_choice_costs_less(count: int) -> None:
    ladder = candidates(CPU)
    taken = {bucket: (37 * number) % 11 for number, bucket in enumerate(ladder.buckets)}
    found = fitted(ladder, taken, count)
    assert len(found) <= count
    assert found.max_tokens == ladder.max_tokens
    largest = ladder.buckets[0]
    least = min(cost(ladder, [largest, *some], taken) for some in combinations(ladder.buckets[1:], count - 1))
    assert cost(ladder, list(found.buckets), taken) == pytest.approx(least)


def test_what_was_never_taken_is_left_out() -> None:
    ladder = candidates(TPU)
    found = fitted(ladder, {Bucket(64, 1): 10}, 9)
    assert {Bucket(64, 1), ladder.buckets[0]} <= set(found.buckets)
    assert len(found) == 2


def test_a_grid_has_a_bucket() -> None:
    with pytest.raises(ValueError, match="one bucket at least, not 0"):
        fitted(candidates(CPU), {}, 0)
