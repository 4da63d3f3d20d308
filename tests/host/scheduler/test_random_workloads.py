"""Any workload in any pool gives the oracle's answers: prefixes, siblings, preemption, aborts, priorities, both modes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxengine.contract.request import Request
from jaxengine.errors import ContextLengthError
from jaxengine.options.speculation import DraftSpeculation, Method, NgramSpeculation
from tests.harness import EOS, FILES, VOCAB, Rig, make_rectangles, make_request

SPECULATIONS = (
    *(NgramSpeculation(num_tokens=tokens, min_length=1, max_length=longest) for tokens, longest in ((1, 1), (4, 3))),
    *(DraftSpeculation(num_tokens=tokens, method=Method.DRAFT_MODEL, model="a draft") for tokens in (1, 4)),
)
KEEPS = (((None,),), ((None,),), ((None, 6),), ((3,),), ((None, 5, 9),), ((None,), (6,)), ((None, 5), (None,)))
"""What the cache groups of each pool of a model keep; most models have one that keeps everything."""
ADAPTERS = tuple(FILES)[:5]
STEMS = tuple(tuple((3 + stem * 31 + i * (5 + stem)) % EOS for i in range(40)) for stem in range(3))


@st.composite
def rig_options(draw: st.DrawFn, **fixed: Any) -> dict[str, Any]:
    max_num_seqs = draw(st.integers(1, 5))
    keeps = draw(st.sampled_from(KEEPS))
    options: dict[str, Any] = {
        "keeps": keeps,
        "num_pages": tuple(draw(st.integers(3, 24)) * len(of_pool) for of_pool in keeps),
        "page_size": draw(st.sampled_from([1, 2, 4, 8])),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": draw(st.integers(max_num_seqs, 40)),
        "max_model_len": draw(st.integers(8, 60)),
        "threshold": draw(st.sampled_from([0, 0, 3, 8])),
        "policy": draw(st.sampled_from(["fcfs", "priority", "fair"])),
        "deterministic": draw(st.booleans()),
        "caching": draw(st.booleans()),
        "max_in_flight": draw(st.integers(1, 4)),
        "turns": draw(st.integers(1, 3)),
        "distant": draw(st.booleans()),
        "host_blocks": draw(st.sampled_from([0, 0, 3, 12, 60])),
        "outer": {} if draw(st.booleans()) else None,
        "adapter_slots": draw(st.integers(1, 3)),
        "adapters_on_host": draw(st.integers(3, 5)),
        "delay_of": iter_of(draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))),
    }
    if not options["deterministic"]:
        if draw(st.booleans()):
            options["speculation"] = draw(st.sampled_from(SPECULATIONS))
        if draw(st.booleans()):
            options["grid"] = make_rectangles(max_num_seqs=fixed.get("max_num_seqs", max_num_seqs))
    if "num_pages" in fixed:
        fixed["num_pages"] = tuple(fixed["num_pages"] * len(of_pool) for of_pool in keeps)
    return {**options, **fixed}


def iter_of(delays: list[int]) -> Callable[[], int]:
    """These, again and again."""
    return partial(next, cycle(delays))


def rigs(**fixed: Any) -> st.SearchStrategy[Rig]:
    return rig_options(**fixed).map(lambda options: Rig(**options))


@st.composite
def requests(draw: st.DrawFn, number: int, *, priorities: bool) -> Request:
    stem = draw(st.sampled_from(STEMS))
    prompt = [*stem[: draw(st.integers(0, 30))], *draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4))]
    if draw(st.integers(0, 3)) == 0:
        prompt = (prompt * 6)[:30]  # something to look up
    options: dict[str, Any] = {"n": draw(st.sampled_from([1, 1, 1, 2, 4]))}
    if draw(st.booleans()):
        options["temperature"] = 0.7
    if draw(st.integers(0, 3)) == 0:
        options["prompt_logprobs"] = 1
    if draw(st.integers(0, 3)) == 0:
        options["logprobs"] = 0
    if draw(st.integers(0, 3)) == 0:
        options["frequency_penalty"] = 0.5
    if draw(st.integers(0, 3)) == 0:
        options["allowed_token_ids"] = draw(st.lists(st.integers(0, VOCAB - 1), min_size=8, max_size=20, unique=True))
    max_tokens = draw(st.integers(1, 12))
    if draw(st.integers(0, 3)) == 0:
        options["min_tokens"] = draw(st.integers(0, min(3, max_tokens)))
    if draw(st.integers(0, 3)) == 0:
        options["stop_token_ids"] = draw(st.lists(st.integers(0, VOCAB - 1), max_size=6))
    if draw(st.integers(0, 3)) == 0:
        options["logit_bias"] = {draw(st.integers(0, VOCAB - 1)): draw(st.sampled_from([-100.0, 4.0, 100.0]))}
    return make_request(
        f"r{number}",
        prompt,
        max_tokens=max_tokens,
        eos_token_id=draw(st.sampled_from([None, EOS, 1, 2])),
        bad_words=draw(st.sampled_from([(), ((7,),), ((8, 9), (10, 11, 12))])),
        priority=draw(st.integers(0, 2)) if priorities else 0,
        seed=draw(st.integers(0, 3)),
        salt=draw(st.sampled_from([None, None, "tenant"])),
        share=draw(st.sampled_from(["heavy", "heavy", "light", "third"])),
        adapter=draw(st.sampled_from([None, None, *ADAPTERS])),
        **options,
    )


def add(rig: Rig, request: Request) -> None:
    """Add a request, which must be refused exactly when the pool can never hold its prompt."""
    length = len(request.prompt_token_ids)
    if length >= rig.max_model_len:
        return  # the intake lets none such pass
    if length <= rig.scheduler.capacity_tokens:
        rig.add(request)
    else:
        with pytest.raises(ContextLengthError):
            rig.add(request)


def play(rig: Rig, data: st.DataObject, *, operations: int) -> None:
    """Add, abort, stop, pause and step in random order, let go on what is paused and run to the end."""
    stopped = disturb(rig, data, operations=operations)
    for request_id in rig.requests:
        rig.pause(request_id, paused=False)
    rig.run()
    check(rig, stopped)


def disturb(rig: Rig, data: st.DataObject, *, operations: int) -> set[tuple[str, int]]:
    """Add, abort, stop, pause and step in random order; the sequences that were stopped."""
    stopped: set[tuple[str, int]] = set()
    kinds = ["add", "add", "add", "step", "step", "step", "abort", "abort meanwhile", "stop", "pause", "go on"]
    for number in range(operations):
        kind = data.draw(st.sampled_from(kinds), label="operation")
        if kind == "add":
            add(
                rig, data.draw(requests(number, priorities=rig.limits.scheduling_policy == "priority"), label="request")
            )
        elif kind == "step":
            for _ in range(data.draw(st.integers(1, 4), label="steps")):
                rig.step()
        elif kind == "stop":
            running = [key for key, known in rig.collected.items() if known.tokens and known.finish_reason is None]
            if running:
                key = data.draw(st.sampled_from(running), label="stopped")
                rig.scheduler.stop(*key)
                stopped.add(key)
        elif kind in ("pause", "go on"):
            if rig.requests:
                request_id = data.draw(st.sampled_from(sorted(rig.requests)), label="paused")
                rig.pause(request_id, paused=kind == "pause")
        elif rig.requests:
            request_id = data.draw(st.sampled_from(sorted(rig.requests)), label="aborted")
            if kind == "abort":
                rig.abort(request_id)
            else:
                rig.step(abort_meanwhile=request_id)
    return stopped


def check(rig: Rig, stopped: set[tuple[str, int]]) -> None:
    """Every sequence has yielded the oracle's answer, or the beginning of it if it was ended before its time."""
    for request in rig.requests.values():
        for index in range(request.sampling.n):
            key = (request.request_id, index)
            answer = rig.expected(request)[request.request_id, index]
            if key in stopped or request.request_id in rig.aborted:
                known = rig.collected.get(key)
                assert known is None or tuple(known.tokens) == answer.tokens[: len(known.tokens)], key
            else:
                assert rig.collected[key].expected() == answer, key


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(rig=rigs(), data=st.data())
def test_any_workload_matches_the_oracle(rig: Rig, data: st.DataObject) -> None:
    play(rig, data, operations=12)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_tiny_pools_force_preemption_and_still_match(data: st.DataObject) -> None:
    rig = data.draw(
        rigs(num_pages=data.draw(st.integers(5, 9)), page_size=4, max_num_seqs=4, max_num_batched_tokens=24)
    )
    play(rig, data, operations=10)
