"""Sequences whose prefix comes from the host: they wait for it, nobody waits for them, and if it does not come they compute."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.contract.batch import FromHost
from jaxengine.contract.tiers import Load
from jaxengine.host.kvcache import prefix
from jaxengine.host.scheduler.arrivals import Arrivals
from jaxengine.host.scheduler.fetches import ANSWER_S, PATIENCE_S
from tests.harness import Rig, make_request, make_sequence

PROMPT = [7 + number for number in range(21)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_sequence_waits_for_all_its_moves_and_for_no_others() -> None:
    arrivals, one, two = Arrivals(Clock()), make_sequence(make_request("a", [1])), make_sequence(make_request("b", [1]))
    moves = [FromHost(0, block, block + 1) for block in range(4)]
    arrivals.expect(one, moves[:2])
    arrivals.expect(two, moves[2:])
    assert arrivals.take([moves[0], moves[2]]) == ([moves[0], moves[2]], [])
    assert arrivals.take([moves[1], FromHost(0, 9, 3), moves[0]]) == ([moves[1]], [one])
    assert arrivals.give_up(two) == [moves[3]]
    assert arrivals.take(moves) == ([], [])
    assert not arrivals


def test_a_sequence_is_late_when_nothing_has_come_for_long() -> None:
    arrivals, one = Arrivals(clock := Clock()), make_sequence(make_request("a", [1]))
    moves = [FromHost(0, block, block + 1) for block in range(2)]
    arrivals.expect(one, moves)
    clock.now = PATIENCE_S / 2
    arrivals.take(moves[:1])
    clock.now = PATIENCE_S
    assert arrivals.late() == []
    clock.now = 2 * PATIENCE_S
    assert arrivals.late() == [one]


def evicted(**options: object) -> Rig:
    """A rig whose host holds the pages of PROMPT, and whose device does not."""
    rig = Rig(num_pages=9, host_blocks=20, max_num_batched_tokens=40, **options)  # type: ignore[arg-type]
    rig.add(make_request("first", PROMPT, max_tokens=1))
    rig.run()
    rig.add(make_request("other", [60 + number % 30 for number in range(30)], max_tokens=2))
    rig.run()
    return rig


def test_a_prefix_that_went_to_the_host_is_not_computed_again() -> None:
    rig = evicted()
    rig.add(make_request("again", PROMPT, max_tokens=3))
    computed = [batch.num_tokens for _ in range(4) if (batch := rig.step()) is not None]
    rig.run()
    rig.assert_oracle()
    assert computed[0] == len(PROMPT) - 20
    [update, *_] = [update for update in rig.heard if update.request_id == "again"]
    assert update.admission.num_cached_tokens == 20


def test_others_go_on_while_pages_come() -> None:
    rig = evicted(delay_of=lambda: 5)
    rig.add(make_request("again", PROMPT, max_tokens=3), make_request("beside", [3, 4, 5], max_tokens=9))
    rows = [len(batch.rows) for _ in range(5) if (batch := rig.step()) is not None]
    assert rows == [1] * 5
    rig.run()
    rig.assert_oracle()


def test_one_that_is_aborted_while_pages_come_leaves_nothing_behind() -> None:
    rig = evicted(delay_of=lambda: 3)
    rig.add(make_request("again", PROMPT, max_tokens=3))
    rig.step()
    assert rig.scheduler.waits_for_pages
    rig.abort("again")
    assert not rig.scheduler.waits_for_pages
    rig.run()
    rig.add(make_request("once more", PROMPT, max_tokens=3))
    rig.run()
    rig.assert_oracle()


def test_two_that_want_the_same_prefix_bring_it_once() -> None:
    rig = evicted(delay_of=lambda: 2)
    rig.add(make_request("one", PROMPT, max_tokens=2), make_request("two", PROMPT, max_tokens=2))
    rig.step()
    assert len(rig.scheduler._placement.running) == 1
    rig.run()
    rig.assert_oracle()
    assert {update.request_id: update.admission.num_cached_tokens for update in rig.heard}["two"] == 20


@pytest.mark.parametrize(("block_s", "cached"), [((), 20), ((1.0,), 20), ((30.0,), 0)])
def test_what_is_computed_sooner_than_it_comes_is_computed(block_s: tuple[float, ...], cached: int) -> None:
    rig = evicted()
    rig.scheduler.tier.block_s = block_s  # a token costs more than one, of four in a page
    rig.add(make_request("again", PROMPT, max_tokens=3))
    rig.run()
    rig.assert_oracle()
    [update, *_] = [update for update in rig.heard if update.request_id == "again"]
    assert update.admission.num_cached_tokens == cached


def test_one_that_has_waited_too_long_computes() -> None:
    clock = Clock()
    rig = evicted(delay_of=lambda: 10**9)
    rig.scheduler._placement.pages.arrivals._clock = clock
    rig.add(make_request("again", PROMPT, max_tokens=3))
    assert rig.step() is None
    clock.now = 1000.0
    batch = rig.step()
    assert batch is not None
    assert batch.num_tokens == len(PROMPT)
    rig.run()
    rig.assert_oracle()
    rig.ledger.check()


def restarted(outer: dict[Any, Any], **options: Any) -> Rig:
    """A rig with nothing but outer stores."""
    return Rig(num_pages=20, host_blocks=20, max_num_batched_tokens=40, outer=outer, **options)


def written() -> dict[Any, Any]:
    """Outer stores with the pages of PROMPT, for whoever has the same digests."""
    rig = restarted({})
    rig.add(make_request("first", PROMPT, max_tokens=1))
    rig.run()
    assert len(rig.runner.tiers.outer) == 5
    return rig.runner.tiers.outer


@pytest.fixture(autouse=True)
def same_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix.secrets, "token_bytes", bytes)


def test_what_an_engine_has_written_another_finds() -> None:
    rig = restarted(written(), delay_of=lambda: 2)
    rig.add(make_request("again", PROMPT, max_tokens=3), make_request("beside", [3, 4, 5], max_tokens=20))
    rig.run()
    rig.assert_oracle()
    [update, *_] = [update for update in rig.heard if update.request_id == "again"]
    assert update.admission.num_cached_tokens == 20
    assert update.admission.cached_from == (("disk", 20),)
    [first, *_] = rig.heard
    assert first.request_id == "beside"
    rig.add(make_request("once more", PROMPT, max_tokens=3))
    rig.run()
    assert rig.heard[-1].admission.cached_from == ()


def test_two_that_want_the_same_pages_of_an_outer_store_have_them_fetched_once() -> None:
    rig = restarted(written(), delay_of=lambda: 3)
    loads: list[Any] = []
    begin = rig.runner.tiers.begin
    rig.runner.tiers.begin = lambda transfers: (loads.extend(transfers), begin(transfers))
    rig.add(make_request("one", PROMPT, max_tokens=3), make_request("two", [*PROMPT, 1], max_tokens=3))
    rig.run()
    rig.assert_oracle()
    assert sum(isinstance(transfer, Load) for transfer in loads) == 5
    assert {update.admission.num_cached_tokens for update in rig.heard} == {20}


def test_a_page_that_is_not_there_after_all_is_computed() -> None:
    outer = written()
    rig = restarted(outer)
    rig.add(make_request("again", PROMPT, max_tokens=3))
    rig.step()
    del outer[next(name for name in list(outer)[2:])]
    rig.run()
    rig.assert_oracle()
    assert rig.heard[0].admission.num_cached_tokens == 8


def test_stores_that_do_not_answer_cost_a_bounded_time() -> None:
    clock = Clock()
    rig = restarted(written(), delay_of=lambda: 10**9)
    rig.scheduler._placement.pages.fetches._clock = clock
    rig.add(make_request("again", PROMPT, max_tokens=3))
    assert rig.step() is None
    assert rig.scheduler.has_work
    clock.now = ANSWER_S
    rig.run()
    rig.assert_oracle()
    rig.runner.tiers.under_way.clear()


@pytest.mark.parametrize("end", ["abort", "pause"])
def test_one_that_leaves_while_it_is_fetched_for(end: str) -> None:
    rig = restarted(written(), delay_of=lambda: 4)
    rig.add(make_request("again", PROMPT, max_tokens=3))
    for _ in range(6):
        rig.step()
    assert rig.scheduler.stats.num_waiting == 1
    if end == "abort":
        rig.abort("again")
    else:
        rig.pause("again")
    assert rig.scheduler.stats.num_waiting == 0
    assert not rig.scheduler.has_work
    rig.pause("again", paused=False)
    rig.add(make_request("other", PROMPT, max_tokens=3))
    rig.run()
    rig.assert_oracle()
