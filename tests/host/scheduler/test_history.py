"""A request that goes on where another engine was lost yields what it would have: wherever that was, whatever it asks for."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxengine.contract.request import Request, ThinkingBudget
from jaxengine.errors import ContextLengthError
from jaxengine.front.book import Book
from jaxengine.options.speculation import NgramSpeculation
from tests.harness import EOS, Rig, make_request
from tests.host.scheduler.test_random_workloads import check, disturb, rig_options

STEM = tuple((3 + i * 5) % EOS for i in range(20))
REQUESTS: dict[str, Request] = {
    "greedy": make_request("greedy", STEM, max_tokens=9),
    "seeded": make_request("seeded", STEM, max_tokens=9, seed=7, temperature=0.8),
    "penalties": make_request("penalties", STEM, max_tokens=9, frequency_penalty=0.5, temperature=0.8),
    "several": make_request("several", STEM, max_tokens=5, n=3, logprobs=1),
    "ends early": make_request("ends early", STEM, max_tokens=9, n=3, stop_token_ids=list(range(0, 40, 2))),
    "scored": make_request("scored", STEM * 2, max_tokens=4, n=2, prompt_logprobs=1),
    "masked": make_request("masked", STEM, max_tokens=9, min_tokens=4, eos_token_id=EOS, bad_words=((7,), (8, 9))),
    "thinking": make_request(
        "thinking", STEM, max_tokens=9, thinking=ThinkingBudget(tokens=3, begin=1, end=(40, 41), opened=True)
    ),
    "repeats": make_request("repeats", [5, 6, 7] * 6, max_tokens=9, allowed_token_ids=[5, 6, 7]),
}


def go_on(before: Rig, after: Rig) -> None:
    """Hand over what was open: what `before` has told is all that is known of it."""
    book = Book()
    for request in before.requests.values():
        book.open(request)
    for update in before.heard:
        entry = book.find(update.request_id)
        assert entry is not None
        assert entry.take(update)
    for entry in book:
        if not entry.ended:
            after.add(entry.resumed())
    after.requests, after.collected, after.heard = before.requests, before.collected, before.heard


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("speculates", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_lost_after_every_step(name: str, *, speculates: bool, caching: bool) -> None:
    def rig() -> Rig:
        speculation = NgramSpeculation(num_tokens=3, min_length=1, max_length=2) if speculates else None
        return Rig(max_num_batched_tokens=16, speculation=speculation, caching=caching)

    cut = 0
    while True:
        before, after = rig(), rig()
        before.add(REQUESTS[name])
        for _ in range(cut):
            before.step()
        if not before.scheduler.has_unfinished:
            break
        go_on(before, after)
        after.run()
        after.assert_oracle()
        cut += 1
    assert cut >= 4


@pytest.mark.parametrize("stopped", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_stopped_by_a_text_that_came_from_elsewhere(stopped: tuple[int, ...], steps: int) -> None:
    """Which may be before the engine has begun with the sequence, or has made it."""
    before, after = Rig(), Rig()
    before.add(REQUESTS["several"])
    while not all(before.collected.get(("several", index)) for index in range(3)):
        before.step()
    go_on(before, after)
    for _ in range(steps):
        after.step()
    told = len(after.heard)
    for index in stopped:
        after.scheduler.stop("several", index)
    after.run()
    assert {update.index for update in after.heard[told:]} == {0, 1, 2} - {*stopped}
    for (name, index), answer in after.expected(REQUESTS["several"]).items():
        if index not in stopped:
            assert after.collected[name, index].expected() == answer


def test_lost_at_every_step_in_a_row() -> None:
    """Each engine runs as many steps as it takes to yield something, and is lost."""
    rig = Rig()
    rig.add(*REQUESTS.values())
    for _ in range(200):
        if not rig.scheduler.has_unfinished:
            break
        heard = len(rig.heard)
        while len(rig.heard) == heard and rig.scheduler.has_unfinished:
            rig.step()
        rig, before = Rig(), rig
        go_on(before, rig)
    rig.run()
    rig.assert_oracle()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(options=rig_options(), data=st.data())
def test_any_workload_lost_at_any_moment_matches_the_oracle(options: dict[str, object], data: st.DataObject) -> None:
    before, after = Rig(**options), Rig(**options)  # type: ignore[arg-type]
    stopped = disturb(before, data, operations=8)
    for request_id in before.aborted | {request_id for request_id, _ in stopped}:  # nobody here notes what a text ends
        before.requests.pop(request_id, None)
    before.heard = [update for update in before.heard if update.request_id in before.requests]
    go_on(before, after)
    after.run()
    check(after, stopped)


def test_sequences_that_a_text_has_ended_are_not_made_again() -> None:
    before, after = Rig(), Rig()
    request = make_request("a", STEM, n=3, max_tokens=9)
    before.add(request)
    for _ in range(4):
        before.step()
    book = Book()
    entry = book.open(request)
    for update in before.heard:
        entry.take(update)
    entry.stop(0)
    entry.stop(2)
    after.add(entry.resumed())
    after.collected = before.collected
    after.run()
    assert {update.index for update in after.heard} == {1}


def test_a_history_that_the_cache_can_never_hold_is_refused() -> None:
    before, after = Rig(), Rig(num_pages=7)
    before.add(make_request("a", STEM, max_tokens=40))
    while len(before.heard) < 30:
        before.step()
    with pytest.raises(ContextLengthError, match="an output of 30 tokens so far"):
        go_on(before, after)


def test_how_it_came_to_run_is_told_as_before() -> None:
    before, after = Rig(), Rig()
    before.add(make_request("first", STEM))
    before.run()
    before.add(make_request("second", STEM, max_tokens=20))
    while not any(update.request_id == "second" for update in before.heard):
        before.step()
    go_on(before, after)
    after.run()
    [admission] = {update.admission for update in after.heard if update.request_id == "second"}
    assert (admission.num_cached_tokens, admission.num_preemptions) == (16, 0)
