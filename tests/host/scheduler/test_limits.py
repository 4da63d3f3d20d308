"""Limits that contradict each other."""

from __future__ import annotations

import pytest

from jaxengine.errors import ConfigError
from jaxengine.host.scheduler.limits import SchedulerLimits


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        ({"max_num_batched_tokens": 3}, r"max_num_batched_tokens \(3\) must be at least max_num_seqs \(4\)"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy must be one of fcfs, priority, got 'lifo'"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be at least 0, got -1"),
    ],
)
def test_are_refused(changes: dict[str, object], message: str) -> None:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 8, **changes}
    with pytest.raises(ConfigError, match=message):
        SchedulerLimits(**options)  # type: ignore[arg-type]
