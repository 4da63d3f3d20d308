"""Limits that contradict each other."""

from __future__ import annotations

import pytest

from jaxengine.contract.cache_traits import CacheTraits
from jaxengine.errors import ConfigError
from jaxengine.host.scheduler.limits import SchedulerLimits


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        ({"max_num_batched_tokens": 3}, r"max_num_batched_tokens \(3\) must be at least max_num_seqs \(4\)"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy must be one of fcfs, priority, fair, got 'lifo'"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be at least 0, got -1"),
    ],
)
def test_are_refused(changes: dict[str, object], message: str) -> None:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 8, **changes}
    with pytest.raises(ConfigError, match=message):
        SchedulerLimits(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deterministic", "cut", "left", "take", "taken"),
    [
        (False, 1, 9, 1, 1),
        (True, 1, 9, 1, 0),  # one token alone is another kernel's
        (True, 1, 9, 8, 7),  # and so is one that stays behind
        (True, 1, 9, 9, 9),
        (True, 1, 1, 1, 1),
        (True, 4, 20, 11, 8),
        (True, 4, 9, 8, 4),
        (True, 4, 5, 4, 0),
    ],
)
def test_what_deterministic_mode_takes_of_a_prompt(
    deterministic: bool, cut: int, left: int, take: int, taken: int
) -> None:
    limits = SchedulerLimits(
        max_num_seqs=4, max_num_batched_tokens=8, deterministic=deterministic, cache=CacheTraits(cut=cut)
    )
    assert limits.prompt_take(left, take) == taken
    assert limits.budget(beside=7) == (7 + max(3, cut + 1) if deterministic else 8)
