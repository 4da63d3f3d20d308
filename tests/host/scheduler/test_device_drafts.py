"""Steps with drafts that the device makes are planned before it is known how many of those before were right."""

from __future__ import annotations

import pytest

from jaxengine.contract.rows import Sample
from jaxengine.host.scheduler.draft_length import DraftLength
from jaxengine.options.speculation import DraftSpeculation, Method
from tests.harness import Rig, make_request

SPECULATION = DraftSpeculation(num_tokens=3, method=Method.DRAFT_MODEL, model="a draft")


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(DraftLength, "choose", lambda length, *_, **__: length.most)
    return Rig(speculation=SPECULATION, num_pages=60)


def test_the_next_step_is_planned_for_the_case_that_all_are_right(rig: Rig) -> None:
    rig.add(make_request("a", [1, 2, 3, 4, 5], max_tokens=30))
    rig.scheduler.schedule()
    batch = rig.scheduler.schedule()  # the step before has not come back
    assert batch is not None
    [row] = batch.rows
    assert (row.tokens, row.num_tokens, row.start, row.want) == (None, 4, 5, Sample(4))
    [sequence] = rig.scheduler._placement.running
    assert (sequence.length, sequence.num_computed, sequence.ahead) == (10, 9, 3)
    assert sequence.covered_end >= 9


def test_what_was_wrong_is_taken_back_when_it_is_known(rig: Rig) -> None:
    rig.add(make_request("a", [1, 2, 3, 4, 5], max_tokens=30))
    while rig.scheduler.has_unfinished:
        rig.step()
        for sequence in rig.scheduler._placement.running:
            assert sequence.num_computed - sequence.ahead <= sequence.num_tokens
            assert sequence.length <= sequence.max_length
    rig.assert_oracle()
    assert rig.steps < 25, "several tokens a step"


def test_a_step_without_drafts_lets_its_sequences_lapse_until_they_are_computed_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.add(make_request("a", [1, 2, 3, 4, 5], max_tokens=40))
    for _ in range(3):
        rig.step()
    [sequence] = rig.scheduler._placement.running
    assert not sequence.lapsed
    monkeypatch.setattr(DraftLength, "choose", lambda *_, **__: 0)
    rig.step()
    assert sequence.lapsed
    assert sequence.plain
    monkeypatch.setattr(DraftLength, "choose", lambda length, *_, **__: length.most)
    batch = rig.step()
    assert batch is not None
    assert [row.num_tokens for row in batch.rows] == [1]
    rig.scheduler.pause("a", paused=True)
    rig.scheduler.pause("a", paused=False)
    for _ in range(6):
        rig.step()
    assert not sequence.lapsed
    assert sequence.offered == 3
    rig.run()
    rig.assert_oracle()


def test_the_device_puts_rows_where_they_end_only_while_drafts_are_not_checked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.add(make_request("a", [1, 2, 3, 4, 5], max_tokens=40))
    prompt, drafted = rig.step(), rig.step()
    assert prompt is not None
    assert prompt.lengths_known
    assert drafted is not None
    assert not drafted.lengths_known
    monkeypatch.setattr(DraftLength, "choose", lambda *_, **__: 0)
    behind = rig.scheduler.schedule()
    assert behind is not None
    assert [(row.num_tokens, row.start) for row in behind.rows] == [(1, 9)]
    assert not behind.lengths_known


def test_without_drafts_under_way_steps_are_as_those_of_an_engine_without(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.add(make_request("a", [1, 2, 3, 4, 5], max_tokens=40))
    rig.step()
    monkeypatch.setattr(DraftLength, "choose", lambda *_, **__: 0)
    rig.step()
    for _ in range(5):
        batch = rig.step()
        assert batch is not None
        assert batch.lengths_known
        assert not batch.drafting
        assert [row.num_tokens for row in batch.rows] == [1]
