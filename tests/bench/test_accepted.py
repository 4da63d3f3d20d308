"""Right tokens of drafts are counted by position, in steps that decode."""

from __future__ import annotations

from buckets import Bucket
from jaxengine.bench.accepted import AcceptedDrafts
from jaxengine.contract.metrics import DraftStats, FirstToken, StepStats

NONE = DraftStats()


def step(generated: int, drafts: DraftStats = NONE, *, prompts: int = 0) -> StepStats:
    first = tuple(FirstToken(4, 0, 0.1) for _ in range(prompts))
    return StepStats(
        shape=Bucket(4, 4),
        num_tokens=8,
        num_padded_tokens=16,
        step_s=0.01,
        host_gap_s=None,
        num_generated_tokens=generated,
        first_tokens=first,
        gaps={},
        drafts=drafts,
    )


def test_a_step_brings_so_many_by_position():
    accepted = AcceptedDrafts()
    three = DraftStats(num_drafts=2, num_draft_tokens=6, num_accepted_tokens=3, accepted_at=(2, 1, 0))
    accepted.on_step(step(5, three))
    accepted.on_step(step(2))
    assert accepted.a_step == [1.0, 0.5, 0.0]
    assert (accepted.steps, accepted.rows, accepted.drafts) == (2, 4, 2)


def test_steps_that_end_prompts_or_bring_nothing_do_not_count():
    accepted = AcceptedDrafts()
    accepted.on_step(step(2, prompts=1))
    accepted.on_step(step(0))
    assert (accepted.steps, accepted.a_step) == (0, [])
    accepted.on_step(step(2, DraftStats(num_drafts=1, num_draft_tokens=1, num_accepted_tokens=1, accepted_at=(1,))))
    accepted.begin()
    assert (accepted.steps, accepted.a_step) == (0, [])
