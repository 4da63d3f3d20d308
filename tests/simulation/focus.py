"""Scenarios in which a situation that is rare among all becomes likely."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import SamplingParams
from tests.grammar.characters import CHARACTERS
from tests.simulation.scenario import Fault, Scenario, Sizes, Visit


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


def behind(scenario: Scenario) -> Scenario:
    """Texts that are told as they come go on and on, and the front is behind while others come, who wait for their turn.

    It stalls now and then, and has little time for outputs between two looks at what has come, which pipes bring in bunches.
    """
    random = Random(f"focus {scenario.seed}")
    requests = [request for visit in scenario.visits for request in visit.requests]
    visits = []
    for number in range(16):
        request = replace(random.choice(requests), request_id=f"r{number}")
        at = random.uniform(0.0, 0.5) if number > 1 else 0.0
        visits.append(Visit(at=at, requests=(_plain(request, 60 if number < 2 else 1),)))
    sizes = Sizes(
        max_num_seqs=2,
        max_model_len=100,
        delay_s=random.choice([0.002, 0.01]),
        read_s=random.choice([1e-6, 5e-4]),
        start_s=0.0,
    )
    stalls = [
        Fault(kind="stall", at=random.uniform(0.0, 0.5), seconds=seconds) for seconds in (0.01, 0.02, 0.05, 0.05, 0.1)
    ]
    return Scenario(seed=scenario.seed, sizes=sizes, visits=tuple(visits), faults=tuple(stalls))


def _plain(request: Request, most: int) -> Request:
    """A request that ends after so many tokens, of which nothing else is asked."""
    sampling = SamplingParams(max_tokens=most, temperature=0.0, output_kind=request.sampling.output_kind)
    return Request(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        sampling=sampling,
        max_tokens=most,
        seed=request.seed,
    )


def operated(scenario: Scenario) -> Scenario:
    """Engines sleep and pause with requests that they keep, again and again, and die or are restarted meanwhile."""
    random = Random(f"focus {scenario.seed}")
    faults, at = [], 0.0
    for _ in range(8):
        at += random.uniform(0.0, 0.2)
        begin, end = random.choice([("doze", "wake"), ("doze", "wake"), ("pause", "resume"), ("clear", "resume")])
        until = at + random.uniform(0.0, 0.3)
        faults += [Fault(kind=begin, at=at), Fault(kind=end, at=until)]
        engine, when = random.randrange(scenario.sizes.engines), random.uniform(at, until)
        if random.random() < 0.5:
            faults.append(Fault(kind="kill", engine=engine, at=when))
        elif random.random() < 0.5:
            faults.append(Fault(kind="restart", engine=engine, at=when, seconds=random.choice([0.0, 0.1])))
        at = until
    # What is refused because an engine died over it may have been done by others: in the end all are awake and compute.
    faults += [Fault(kind=kind, at=at + 5.0) for kind in ("wake", "resume")]
    return replace(
        scenario,
        sizes=replace(scenario.sizes, start_s=random.choice([0.0, 0.05]), loses=False, max_restarts=100, timeout_s=0.0),
        faults=tuple(faults),
        poison=(),
    )


def drafting_on_the_device(scenario: Scenario) -> Scenario:
    """The same with drafts that the device makes, where something can be drafted for."""
    sizes = scenario.sizes
    if sizes.deterministic or sizes.recurrent:
        return scenario
    return replace(scenario, sizes=replace(sizes, drafts=3, device_drafts=True))
