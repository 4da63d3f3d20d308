"""Which sequences of a request are made, and when."""

from __future__ import annotations

from dataclasses import replace

from jaxengine.contract.request import SequenceHistory
from jaxengine.host.scheduler.group import Group
from tests.harness import make_request, make_sequence

NEW = SequenceHistory()


def group_of(*histories: SequenceHistory) -> Group:
    request = replace(make_request("a", (1, 2, 3), n=len(histories)), history=histories)
    return Group(request, number=0, max_tokens=request.max_tokens, mask=None)


def test_sequences_are_made_in_order_each_once() -> None:
    group = group_of(NEW, NEW, NEW)
    assert group.has_more
    assert not group.has_only_first
    assert group.make_next() == 0
    assert group.has_only_first
    assert [group.make_next(), group.make_next()] == [1, 2]
    assert not group.has_only_first
    assert not group.has_more


def test_a_single_sequence_is_no_first_of_several() -> None:
    group = group_of(NEW)
    group.make_next()
    assert not group.has_only_first


def test_those_that_ended_elsewhere_or_are_left_out_are_not_made() -> None:
    group = group_of(NEW, SequenceHistory(ended=True), NEW, NEW)
    group.never_make(2)
    group.never_make(1)  # which is not to be made anyway
    assert [group.make_next(), group.make_next()] == [0, 3]
    assert not group.has_more


def test_the_third_waits_for_the_second_and_not_for_the_first() -> None:
    group = group_of(NEW, NEW, NEW)
    sequence = make_sequence(group.request, index=group.make_next())
    assert not group.awaits_room_for(sequence)
    assert group.awaits_room_for(make_sequence(group.request, index=group.make_next()))
    assert not group.awaits_room_for(sequence)


def test_unfinished_are_those_that_live_and_those_to_be_made_with_what_they_have() -> None:
    group = group_of(NEW, SequenceHistory(token_ids=(7, 8)))
    sequence = make_sequence(group.request, index=group.make_next())
    sequence.append(5)
    group.live[0] = sequence
    assert [(index, num_output) for index, _, num_output in group.unfinished()] == [(0, 1), (1, 2)]
