"""Scenarios in which a situation that is rare among all becomes likely."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from jaxengine.contract.request import Request
from tests.grammar.characters import CHARACTERS
from tests.simulation.scenario import Fault, Scenario, Visit


def stopped_while_resumed(scenario: Scenario) -> Scenario:
    """Engines die often, and what they told last stops sequences of several, which wait on other engines by then.

    Two engines run a sequence at a time, so that one that has lost its engine waits. Slow pipes bring many of the last tokens
    together with the news of the death: the request is sent to the other engine before its text was looked at.
    """
    random = Random(f"focus {scenario.seed}")
    steps = random.sample(range(3, 120), 12)
    return replace(
        scenario,
        sizes=replace(
            scenario.sizes,
            engines=2,
            max_num_seqs=1,
            delay_s=0.05,
            start_s=0.0,
            loses=False,
            max_restarts=100,
            timeout_s=0.0,
        ),
        visits=tuple(map(_of_several_with_stop_strings, scenario.visits)),
        faults=tuple(Fault(kind="raise", engine=random.randrange(2), step=step) for step in steps),
        poison=(),
    )


def _of_several_with_stop_strings(visit: Visit) -> Visit:
    def several(request: Request) -> Request:
        if request.pooling is not None:
            return request
        sampling = replace(request.sampling, n=4, temperature=0.7, stop=CHARACTERS[:24], min_tokens=0)
        return replace(request, sampling=sampling, grammar=None, resume=True)

    requests, again = (tuple(map(several, requests)) for requests in (visit.requests, visit.again))
    return replace(visit, at=visit.at % 0.05, leaves_after=None, cancelled_at=math.inf, requests=requests, again=again)


def drafting_on_the_device(scenario: Scenario) -> Scenario:
    """The same with drafts that the device makes, where something can be drafted for."""
    sizes = scenario.sizes
    if sizes.deterministic or sizes.recurrent:
        return scenario
    return replace(scenario, sizes=replace(sizes, drafts=3, device_drafts=True))
