"""What sequences hold beside pages is theirs alone, and comes back."""

from __future__ import annotations

import pytest

from jaxengine.host.scheduler.sequence_slots import SequenceSlots
from tests.harness import make_request, make_sequence


def test_a_slot_is_of_one_sequence_until_it_comes_back() -> None:
    slots = SequenceSlots(2, adapters=None, encoders=None)
    first, second, third = (make_sequence(make_request(name, [1]), number=at) for at, name in enumerate("abc"))
    slots.take(first)
    slots.take(second)
    assert (first.slot, second.slot) == (1, 2)
    slots.give_back(first)
    slots.take(third)
    assert (first.slot, third.slot) == (0, 1)


def test_a_slot_that_is_held_when_idle_is_found() -> None:
    slots = SequenceSlots(2, adapters=None, encoders=None)
    sequence = make_sequence(make_request("a", [1]), number=0)
    slots.take(sequence)
    with pytest.raises(AssertionError, match="1 slots are held"):
        slots.check_idle()
    slots.give_back(sequence)
    slots.check_idle()
