"""Who was passed over in a round of admission, and what is told of why."""

from __future__ import annotations

import pytest

from jaxengine.host.scheduler.deferred import Deferred
from tests.harness import make_request, make_sequence


@pytest.mark.parametrize(
    ("others", "without_slot", "without_embeddings", "reason"),
    [
        (0, 0, 0, "max_num_seqs"),
        (1, 2, 2, "prefix_cache"),
        (0, 2, 0, "max_loras"),
        (0, 0, 1, "encoder_cache"),
        (0, 2, 1, "encoder_cache"),
    ],
)
def test_the_reason_is_that_of_those_passed_over(
    others: int, without_slot: int, without_embeddings: int, reason: str
) -> None:
    deferred = Deferred()
    added = (
        *[deferred.add] * others,
        *[deferred.add_without_slot] * without_slot,
        *[deferred.add_without_embeddings] * without_embeddings,
    )
    sequences = [make_sequence(make_request(str(number), (1, 2)), number=number) for number in range(len(added))]
    for add, sequence in zip(added, sequences, strict=True):
        add(sequence)
    assert deferred.sequences == sequences
    assert deferred.reason == reason


def test_only_those_without_a_slot_are_overtaken() -> None:
    deferred = Deferred()
    first, second = (make_sequence(make_request(name, (1, 2))) for name in "ab")
    deferred.add_without_slot(first)
    deferred.add(second)
    deferred.note_overtaken()
    deferred.note_overtaken()
    assert (first.overtaken, second.overtaken) == (2, 0)
