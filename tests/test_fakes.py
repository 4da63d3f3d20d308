"""The fake runner refuses what a device would silently get wrong, and agrees with the oracle when all is right."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from buckets import Bucket
from jaxengine.batch import Batch, Row, RowSampling, SamplingSpec
from tests.fakes import FakeRunner, choose, oracle
from tests.harness import make_request

PLACES = Bucket(4, 4)
SAMPLING = RowSampling(SamplingSpec(temperature=0.0, seed=0))


def row(tokens: tuple[int, ...], *, start: int, pages: list[int]) -> Row:
    return Row(tokens, start, np.array(pages, np.int32), SAMPLING)


def prefill(*rows: Row, bucket: Bucket = PLACES, copies: tuple[tuple[int, int], ...] = ()) -> Batch:
    return Batch(rows, (), bucket, None, copies)


def run(runner: FakeRunner, batch: Batch) -> list[int]:
    return runner.sample(batch, runner.forward(batch), {}).wait().tokens.tolist()


def first_token(prompt: tuple[int, ...]) -> int:
    return oracle(make_request("a", prompt, max_tokens=1), 0, vocab_size=50, max_len=99).tokens[0]


def test_rows_of_a_step_are_written_before_any_attends() -> None:
    runner = FakeRunner(8, 4, 50)
    batch = prefill(row((5, 6), start=4, pages=[3, 1]), row((1, 2, 3, 4), start=0, pages=[3]))
    assert run(runner, batch)[0] == first_token((1, 2, 3, 4, 5, 6))


def test_copies_read_every_source_before_they_write() -> None:
    runner = FakeRunner(8, 4, 50)
    run(runner, prefill(row((1, 2, 3), start=0, pages=[1]), row((7, 8, 9), start=0, pages=[2])))
    decode = row((4,), start=3, pages=[2]), row((4,), start=3, pages=[1])
    swapped = Batch((), decode, None, Bucket(2, 1), copies=((1, 2), (2, 1)))
    assert run(runner, swapped) == [first_token((1, 2, 3, 4)), first_token((7, 8, 9, 4))]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (prefill(row((1,), start=0, pages=[0])), "in the sink"),
        (prefill(row((1,), start=4, pages=[0, 1])), "the sink is read"),
        (prefill(row((1,), start=1, pages=[1])), "position 0 is read and was never written"),
        (prefill(row((1,), start=0, pages=[1, 2])), "2 pages do not exactly cover 1 positions"),
        (prefill(row((1,), start=0, pages=[1]), copies=((0, 2),)), "the sink is copied from"),
        (prefill(row((1,), start=0, pages=[1]), copies=((2, 0),)), "the sink is copied to"),
        (prefill(row((1, 2), start=0, pages=[1]), bucket=Bucket(4, 1)), "a row longer than bucket 4x1"),
        (prefill(*[row((1,), start=0, pages=[1])] * 2, bucket=Bucket(1, 4)), "2 rows in bucket 1x4"),
        (prefill(), "a bucket without rows"),
    ],
)
def test_what_would_be_wrong_on_a_device_raises(batch: Batch, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        FakeRunner(8, 4, 50).forward(batch)


def test_the_choice_depends_on_what_sampling_may_depend_on_and_nothing_else() -> None:
    greedy, other_seed = SAMPLING.spec, dataclasses.replace(SAMPLING.spec, seed=1)
    random = dataclasses.replace(greedy, temperature=1.0)

    def tokens(spec: SamplingSpec) -> list[int]:
        return [choose(state, 7, RowSampling(spec), 50)[0] for state in range(20)]

    assert tokens(greedy) == tokens(other_seed)
    assert tokens(random) != tokens(greedy)
    assert tokens(random) != tokens(dataclasses.replace(random, seed=1))
    assert choose(3, 7, dataclasses.replace(SAMPLING, allowed=np.array([1 << 9, 0], np.uint32)), 50)[0] == 9
