"""The planners by name. A planner is one function and one row; its keyword arguments are the options that it reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from buckets.explicit import plan_explicit
from buckets.exponential import plan_exponential
from buckets.grid import Grid
from buckets.limits import Limits
from buckets.linear import plan_linear
from buckets.tokens import plan_tokens

PLANNERS: Mapping[str, Callable[..., Grid]] = {
    "tokens": plan_tokens,
    "linear": plan_linear,
    "exponential": plan_exponential,
    "explicit": plan_explicit,
}

OPTIONS: Mapping[str, frozenset[str]] = {
    name: frozenset(inspect.signature(planner).parameters) - {"limits"} for name, planner in PLANNERS.items()
}
"""The names of the options that each planner reads."""


def plan(name: str, limits: Limits, **options: Any) -> Grid:
    """Plan the grid of `limits` with the planner called `name`; an option that is None is left to it.

    Raises:
        ValueError: an unknown planner, an option that it does not read, or limits that it cannot plan for.
    """
    if name not in PLANNERS:
        raise ValueError(f"unknown bucket planner {name!r}; known are {', '.join(PLANNERS)}")
    given = {option: value for option, value in options.items() if value is not None}
    for option in given.keys() - OPTIONS[name]:
        readers = " or ".join(planner for planner, known in OPTIONS.items() if option in known)
        raise ValueError(
            f"{option} says nothing to the {name} planner; leave it out, or choose bucket_planner {readers}"
        )
    return PLANNERS[name](limits, **given)
