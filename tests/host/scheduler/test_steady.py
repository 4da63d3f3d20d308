"""Sequences that are in every step: what is kept for all of them together is what each would say of itself."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.host.scheduler.sequence import Sequence
from jaxengine.host.scheduler.steady import RECENT, Steady
from tests.harness import Rig, make_request

LONG = RECENT + 20


def decoding(**options: Any) -> Rig:
    """Three sequences that have decoded for a while."""
    rig = Rig(num_pages=3 * LONG, max_model_len=LONG + 12, **options)
    rig.add(*(make_request(name, [5 + at, 9, 2], max_tokens=LONG - at) for at, name in enumerate("abc")))
    for _ in range(6):
        rig.step()
    return rig


def steady(rig: Rig) -> list[Sequence]:
    return rig.scheduler._placement.steady.rows.sequences


@pytest.mark.parametrize("options", [{"deterministic": True}, {"keeps": ((None, 7),)}])
def test_whoever_decodes_is_steady_and_its_tokens_are_right_to_the_end(options: dict[str, Any]) -> None:
    """In deterministic mode no page of output is offered, so that nothing but their number has them taken."""
    rig = decoding(**options)
    assert len(steady(rig)) == 3
    rig.run()
    assert not steady(rig)
    rig.assert_oracle()


def test_a_step_leaves_those_alone_of_whom_nothing_is_due() -> None:
    rig = decoding(page_size=16)
    before = [(each.num_computed, each.num_tokens, each.pending) for each in steady(rig)]
    rig.step()
    assert [(each.num_computed, each.num_tokens, each.pending) for each in steady(rig)] == before
    rig.scheduler._placement.steady.settle_all()
    assert [(each.num_computed, each.num_tokens, each.pending) for each in steady(rig)] != before
    assert [tuple(each.tokens[3:]) for each in steady(rig)] == [tuple(rig.collected[name, 0].tokens) for name in "abc"]


def test_who_is_paused_leaves_and_is_steady_again() -> None:
    rig = decoding()
    rig.scheduler.pause("b", paused=True)
    assert [each.request_id for each in steady(rig)] == ["a", "c"]
    rig.step()
    rig.scheduler.pause("b", paused=False)
    for _ in range(8):
        rig.step()
    assert [each.request_id for each in steady(rig)] == ["a", "c", "b"]
    rig.run()
    rig.assert_oracle()


def test_tokens_of_another_step_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed again is computed of them."""
    take = Steady.take

    def wrong(kept: Steady, *arguments: Any) -> list[int]:
        positions = take(kept, *arguments)
        kept._recent[:] = 7
        return positions

    monkeypatch.setattr(Steady, "take", wrong)
    rig = decoding(caching=False)
    rig.scheduler.pause("a", paused=True)
    rig.step()
    rig.scheduler.pause("a", paused=False)
    rig.run()
    with pytest.raises(AssertionError):
        rig.assert_oracle()
