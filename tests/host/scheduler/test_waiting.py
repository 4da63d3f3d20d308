"""The queue's order, and sequences that leave it from the middle."""

from __future__ import annotations

from jaxengine.host.scheduler.sequence import Sequence, State
from jaxengine.host.scheduler.waiting import WaitingQueue
from tests.harness import make_request, make_sequence


def numbered(number: int) -> Sequence:
    return make_sequence(make_request(f"r{number}", [1], max_tokens=4), number=number)


def test_the_most_urgent_comes_first_whenever_it_was_added() -> None:
    queue = WaitingQueue()
    assert queue.first() is None
    sequences = [numbered(number) for number in (2, 0, 1)]
    for sequence in sequences:
        queue.push(sequence)
    order = []
    while (sequence := queue.first()) is not None:
        order.append(sequence.sequence_id)
        queue.pop()
    assert order == [0, 1, 2]
    assert (len(queue), queue.num_tokens) == (0, 0)


def test_a_sequence_that_ended_is_passed_over() -> None:
    queue = WaitingQueue()
    first, second = numbered(0), numbered(1)
    queue.push(first)
    queue.push(second)
    first.state = State.FINISHED
    queue.discard(first)
    assert queue.first() is second
    assert (len(queue), queue.num_tokens) == (1, second.num_tokens)


def test_tokens_that_come_while_a_sequence_waits_leave_the_count_right() -> None:
    queue = WaitingQueue()
    sequence = numbered(0)
    queue.push(sequence)
    sequence.append(7)
    queue.pop()
    assert (len(queue), queue.num_tokens) == (0, 0)
