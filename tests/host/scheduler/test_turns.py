"""Where stages work on several steps at once, sequences take turns, and each gets what it gets alone."""

from __future__ import annotations

import pytest

from tests.harness import VOCAB, Rig, make_request, oracle


def rows_of_steps(rig: Rig, count: int) -> list[set[int]]:
    """The slots of the rows of so many steps."""
    steps = [rig.step() for _ in range(count)]
    return [set(batch.rows.slots) for batch in steps if batch is not None]


def decoding(turns: int, num_seqs: int) -> Rig:
    """So many sequences, of which each has been in a step."""
    rig = Rig(max_num_seqs=max(4, num_seqs), max_in_flight=turns + 1, turns=turns, num_pages=80)
    for number in range(num_seqs):
        rig.add(make_request(f"r{number}", [1 + number, 2, 3], max_tokens=40))
    for _ in range(2 * turns):
        rig.step()
    return rig


@pytest.mark.parametrize("turns", [2, 3])
def test_steps_that_are_computed_at_once_have_no_sequence_in_common(turns: int) -> None:
    steps = rows_of_steps(decoding(turns, 8), 12)
    assert len(steps) == 12
    for number in range(len(steps) - turns + 1):
        together = steps[number : number + turns]
        assert sum(map(len, together)) == len(set.union(*together)) == 8, "each is in one of them"


def test_a_sequence_alone_is_in_no_more_steps_in_flight_than_with_one_stage() -> None:
    rig = Rig(max_in_flight=4, turns=3)
    rig.add(make_request("a", [1, 2, 3], max_tokens=20))
    for _ in range(12):
        rig.step()
        [sequence] = rig.scheduler._placement.running
        assert sequence.pending <= 2


def test_parts_of_a_prompt_follow_each_other() -> None:
    rig = Rig(max_in_flight=3, turns=2, max_num_batched_tokens=8)
    rig.add(make_request("a", list(range(1, 30)), max_tokens=2))
    first, second = rig.step(), rig.step()
    assert first is not None
    assert second is not None
    assert [batch.rows.starts[0] for batch in (first, second)] == [0, 8]


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_outputs_are_those_of_each_alone(turns: int) -> None:
    rig = Rig(max_in_flight=turns + 1, turns=turns, num_pages=12)  # too few pages for all
    requests = [make_request(f"r{number}", range(1, 3 + number), max_tokens=9) for number in range(6)]
    rig.add(*requests)
    while rig.scheduler.has_unfinished:
        rig.step()
    for request in requests:
        answer = oracle(request, 0, vocab_size=VOCAB, max_len=rig.max_len)
        assert rig.collected[request.request_id, 0].expected() == answer
    rig.scheduler.forget_steps()
    rig.scheduler.check_idle()
