"""The fake runner refuses what a device would silently get wrong, and agrees with the oracle when all is right."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from buckets import Bucket
from jaxengine.contract.batch import Batch, FromHost, Move, SamplingSpec, SlotState, ToHost
from jaxengine.contract.rows import Row, Rows, Sample
from tests.fakes import FakeRunner, Slot, choose, oracle
from tests.harness import make_request

GREEDY = SamplingSpec(temperature=0.0, seed=0)
BEGIN = (SlotState(1, GREEDY), SlotState(2, GREEDY))


Tables = dict[int, list[int]]
FIRST: Tables = {1: [1]}


def row(tokens: tuple[int, ...] | None, *, start: int, slot: int = 1) -> Row:
    return Row(slot, tokens, 1 if tokens is None else len(tokens), start, Sample())


def step(
    *rows: Row,
    number: int = 1,
    bucket: Bucket = Bucket(4, 4),  # noqa: B008 (frozen)
    tables: Tables = FIRST,
    moves: tuple[Move, ...] = (),
) -> Batch:
    written = tuple((slot, np.array([pages], np.int32)) for slot, pages in tables.items())
    return Batch(number, bucket, Rows(rows), BEGIN if number == 1 else (), written, moves)


def run(runner: FakeRunner, batch: Batch) -> list[int]:
    return runner.launch(batch).wait().tokens.tolist()


def first_token(prompt: tuple[int, ...]) -> int:
    return oracle(make_request("a", prompt, max_tokens=1), 0, vocab_size=50, max_len=99).tokens[0]


def test_rows_of_a_step_are_written_before_any_attends() -> None:
    runner = FakeRunner(8, 4, 50)
    batch = step(row((5, 6), start=4), row((1, 2, 3, 4), start=0), tables={1: [3, 1]})
    assert run(runner, batch)[0] == first_token((1, 2, 3, 4, 5, 6))


def test_pages_leave_before_others_come_back() -> None:
    runner = FakeRunner(8, 4, 50)
    run(runner, step(row((1, 2, 3), start=0), row((7, 8, 9), start=0, slot=2), tables={1: [1], 2: [2]}))
    moves = FromHost(0, 0, 2), FromHost(0, 1, 1), ToHost(0, 1, 0), ToHost(0, 2, 1)
    decode = row((4,), start=3), row((4,), start=3, slot=2)
    swapped = step(*decode, number=2, bucket=Bucket(2, 1), tables={1: [2], 2: [1]}, moves=moves)
    assert run(runner, swapped) == [first_token((1, 2, 3, 4)), first_token((7, 8, 9, 4))]


def test_a_slot_knows_what_it_sampled_last() -> None:
    runner = FakeRunner(8, 4, 50)
    first = run(runner, step(row((1, 2, 3), start=0)))
    second = run(runner, step(row(None, start=3), number=2, tables={}))
    assert second == [first_token((1, 2, 3, *first))]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (step(row((1,), start=0), tables={1: [0]}), "in the sink"),
        (step(row((1,), start=4), tables={1: [0, 1]}), "the sink is read"),
        (step(row((1,), start=1)), "position 0 is read and was never written"),
        (step(row((1,), start=4)), "out of bounds"),
        (step(row((1,), start=0), moves=(ToHost(0, 0, 2),)), "the sink is moved"),
        (step(row((1,), start=0), moves=(FromHost(0, 2, 3),)), "a block comes back that was never written"),
        (step(row((1, 2), start=0), bucket=Bucket(1, 1)), "2 tokens in bucket 1x1"),
        (step(*[row((1,), start=0)] * 2, bucket=Bucket(1, 4)), "2 rows in bucket 1x4"),
        (step(), "a step without rows"),
        (step(row((1,), start=0), tables={}), "a slot without a page table"),
        (step(Row(1, None, 2, 0, Sample(last=2))), "no drafts on this device"),
        (step(row(None, start=0)), "a slot that has sampled nothing"),
        (step(row((1,), start=0, slot=3)), "a slot in which nothing began"),
        (step(row((1,), start=0), number=2), "numbered in the order"),
    ],
)
def test_what_would_be_wrong_on_a_device_raises(batch: Batch, message: str) -> None:
    with pytest.raises((AssertionError, IndexError), match=message):
        FakeRunner(8, 4, 50).launch(batch)


def test_the_choice_depends_on_what_sampling_may_depend_on_and_nothing_else() -> None:
    random = dataclasses.replace(GREEDY, temperature=1.0)

    def slot(spec: SamplingSpec) -> Slot:
        return Slot(SlotState(1, spec), (None,))

    def tokens(spec: SamplingSpec) -> list[int]:
        return [choose(state, 7, slot(spec), 50, None)[0] for state in range(20)]

    assert tokens(GREEDY) == tokens(dataclasses.replace(GREEDY, seed=1))
    assert tokens(random) != tokens(GREEDY)
    assert tokens(random) != tokens(dataclasses.replace(random, seed=1))
    masked = dataclasses.replace(GREEDY, masked=True)
    assert choose(3, 7, slot(masked), 50, np.array([1 << 9, 0], np.uint32))[0] == 9
