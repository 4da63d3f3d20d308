"""From a scenario that fails to the smallest one found that still does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import TypeVar

from tests.simulation.scenario import Scenario, Sizes, Visit

T = TypeVar("T")


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], *, tries: int = 400) -> Scenario:
    """Take away whatever is not needed for the scenario to fail, with at most so many tries."""
    smaller = _smaller(scenario)
    for _ in range(tries):
        candidate = next(smaller, None)
        if candidate is None:
            break
        if fails(candidate):
            scenario, smaller = candidate, _smaller(candidate)
    return scenario


def kind_of(errors: Sequence[str]) -> str:
    """What failed, in short: equal for the same failure of other requests, with other numbers."""
    return re.sub(r"[^A-Za-z ]|\br\d+", "", errors[0])[:40] if errors else ""


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with a little less, those with much less first."""
    for visits in _without_some(scenario.visits):
        yield replace(scenario, visits=visits)
    for faults in _without_some(scenario.faults):
        yield replace(scenario, faults=faults)
    for poison in _without_some(scenario.poison):
        yield replace(scenario, poison=poison)
    for place, visit in enumerate(scenario.visits):
        for simpler in _simpler(visit):
            yield replace(scenario, visits=(*scenario.visits[:place], simpler, *scenario.visits[place + 1 :]))
    for field in fields(Sizes):
        if getattr(scenario.sizes, field.name) != field.default:
            yield replace(scenario, sizes=replace(scenario.sizes, **{field.name: field.default}))


def _simpler(visit: Visit) -> Iterator[Visit]:
    if len(visit.requests) > 1:
        for requests in _without_some(visit.requests):
            kept = {request.request_id for request in requests}
            again = tuple(request for request in visit.again if request.request_id in kept)
            yield replace(visit, requests=requests, again=again)
    for habit in ({"again": ()}, {"pause_s": 0.0}, {"leaves_after": None}, {"cancelled_at": math.inf}):
        if visit != (usual := replace(visit, **habit)):  # type: ignore[arg-type]
            yield usual


def _without_some(values: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Without each half, each quarter, and so on to each one."""
    size = len(values)
    while size > 1:
        size = -(-size // 2)
        for start in range(0, len(values), size):
            yield (*values[:start], *values[start + size :])
    if len(values) == 1:
        yield ()
