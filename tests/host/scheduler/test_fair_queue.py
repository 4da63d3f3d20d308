"""Fair shares: who comes next, what idleness earns, who gives way, and how far apart two shares that always wait can come."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxengine.host.scheduler.fair_queue import FORGETTING, OUTPUT_WEIGHT, FairQueue
from jaxengine.host.scheduler.sequence import Sequence, State
from tests.harness import EOS, Rig, make_request, make_sequence


def prompt(length: int, start: int = 1) -> list[int]:
    return [(start + 7 * i) % EOS for i in range(length)]


def waiting(share: str, number: int) -> Sequence:
    sequence = make_sequence(make_request(f"{share} {number}", [1, 2], max_tokens=4, share=share), number=number)
    sequence.urgency = (0.0, number, 0)
    return sequence


def fill(queue: FairQueue, *shares: str, start: int = 0) -> None:
    for number, share in enumerate(shares, start):
        queue.begin(share)
        queue.push(waiting(share, number))


def taken(queue: FairQueue, *, cost: float) -> list[str]:
    """Whose turn it was, one after the other, each charged `cost`."""
    order = []
    while (sequence := queue.first()) is not None:
        share = sequence.group.request.share
        queue.pop()
        sequence.state = State.RUNNING
        queue.charge(share, cost)
        order.append(share)
    return order


def test_shares_take_turns_and_within_one_it_is_first_come_first_served() -> None:
    queue = FairQueue()
    fill(queue, "heavy", "heavy", "heavy", "light", "light")
    assert (len(queue), queue.num_tokens) == (5, 10)
    assert taken(queue, cost=10) == ["heavy", "light", "heavy", "light", "heavy"]
    assert (len(queue), queue.num_tokens) == (0, 0)


def test_what_was_served_decides_and_not_how_often() -> None:
    queue = FairQueue()
    fill(queue, "heavy", "light", "heavy", "light", "light", "light")
    queue.charge("heavy", 25)
    assert taken(queue, cost=10) == ["light", "light", "light", "heavy", "light", "heavy"]


def test_who_comes_back_is_put_beside_those_that_wait_and_has_saved_nothing_up() -> None:
    queue = FairQueue()
    fill(queue, *["heavy"] * 4)
    queue.charge("heavy", 1000)
    fill(queue, *["light"] * 4, start=4)
    assert queue.served("light") == 1000
    assert taken(queue, cost=10) == ["heavy", "light"] * 4
    fill(queue, "late", start=9)  # nobody waits: beside the one that was admitted last
    assert queue.served("late") == 1040


def test_a_sequence_that_leaves_from_the_middle_is_passed_over() -> None:
    queue = FairQueue()
    fill(queue, "heavy", "light", "light")
    first = queue.first()
    assert first is not None
    queue.remove(first)
    first.state = State.PAUSED
    assert (len(queue), queue.num_tokens) == (2, 4)
    assert taken(queue, cost=1) == ["light", "light"]


def test_shares_that_are_gone_are_forgotten() -> None:
    queue = FairQueue()
    for number in range(4 * FORGETTING):
        fill(queue, f"user {number}", start=number)
        taken(queue, cost=1)
    assert len(queue._served) < 2 * FORGETTING


def test_a_light_share_gets_a_place_where_a_heavy_one_holds_them_all() -> None:
    rig = Rig(policy="fair", max_num_seqs=4, num_pages=200, max_num_batched_tokens=16, max_model_len=96)
    for number in range(20):
        rig.add(make_request(f"heavy {number}", prompt(8, start=number), max_tokens=60, share="heavy"))
    for _ in range(6):
        rig.step()
    assert rig.scheduler.stats.num_running == 4
    rig.add(make_request("light", prompt(9, start=50), max_tokens=3, share="light"))
    for _ in range(5):
        rig.step()
    assert rig.collected["light", 0].tokens
    rig.run()
    rig.assert_oracle()


def test_a_share_that_holds_one_place_only_is_not_sent_away() -> None:
    rig = Rig(policy="fair", max_num_seqs=2, num_pages=200)
    for share in ("a", "b", "c"):
        rig.add(make_request(share, prompt(8, start=ord(share)), max_tokens=20, share=share))
    rig.run()
    assert rig.scheduler.stats.num_preemptions == 0
    rig.assert_oracle()


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    outputs=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    seats=st.integers(2, 5),
    num_pages=st.integers(24, 120),
    counts=st.tuples(st.integers(30, 60), st.integers(30, 60)),
)
def test_two_shares_that_always_wait_are_served_about_the_same(
    lengths: tuple[int, int], outputs: tuple[int, int], seats: int, num_pages: int, counts: tuple[int, int]
) -> None:
    """The bound of the paper: what a full batch may come to, twice."""
    rig = Rig(policy="fair", max_num_seqs=seats, num_pages=num_pages, caching=False, max_num_batched_tokens=16)
    rig.check = False
    shares = ("heavy", "light")
    for share, length, output, count in zip(shares, lengths, outputs, counts, strict=True):
        for number in range(count):
            start = number + 40 * (share == "light")
            rig.add(make_request(f"{share} {number}", prompt(length, start=start), max_tokens=output, share=share))
    bound = 2 * max(*lengths, seats * (max(lengths) + OUTPUT_WEIGHT * max(outputs)))
    queue = rig.scheduler._placement.waiting
    assert isinstance(queue, FairQueue)
    while all(queue._queues.get(share) for share in shares):
        rig.step()
        served = dict.fromkeys(shares, 0.0)
        for (request_id, _), known in rig.collected.items():
            share = request_id.split()[0]
            served[share] += len(rig.requests[request_id].prompt_token_ids) + OUTPUT_WEIGHT * len(known.tokens)
        assert abs(served["heavy"] - served["light"]) <= bound
    rig.run()
