"""The planners by name. A planner is one function and one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from buckets.explicit import plan_explicit
from buckets.exponential import plan_exponential
from buckets.grid import Grid
from buckets.limits import Limits
from buckets.linear import plan_linear
from buckets.tokens import plan_tokens

PLANNERS: Mapping[str, Callable[[Limits], Grid]] = {
    "tokens": plan_tokens,
    "linear": plan_linear,
    "exponential": plan_exponential,
    "explicit": plan_explicit,
}


def plan(name: str, limits: Limits) -> Grid:
    """Plan the grid of `limits` with the planner called `name`.

    Raises:
        ValueError: an unknown planner, or limits that it cannot plan for.
    """
    if name not in PLANNERS:
        raise ValueError(f"unknown bucket planner {name!r}; known are {', '.join(PLANNERS)}")
    return PLANNERS[name](limits)
