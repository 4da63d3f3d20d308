"""Drafts that the device makes change how many tokens a step brings, and never which: whatever is asked, with overlap on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxengine.contract.runner import Weights
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.host.scheduler.draft_length import DraftLength
from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import Engine, build_engine
from tests.integration.drafted import drafted_by
from tests.integration.test_overlap import OPTIONS, play, random_request
from tests.quick import quick_programs

NUM_DRAFTS = 3
DISTURBED = ("draft_model", "eagle3")
"""What knows the target; the others have random weights."""


@contextmanager
def any_number_of_drafts(seed: int) -> Iterator[None]:
    """Let rows carry mostly all drafts, sometimes fewer, and now and then none."""
    rng = random.Random(seed)
    choices = [*(NUM_DRAFTS,) * 30, *range(1, NUM_DRAFTS), 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DraftLength, "choose", lambda *_, **__: rng.choice(choices))
        yield


def disturb_draft(engine: Engine) -> None:
    """The draft is the model itself; let it be another that is wrong now and then."""
    path = [path for path in engine.weights() if path.startswith("draft.") and "norm" in path][-1]
    before = np.asarray(engine.weights()[path])
    noise = 1 + 0.3 * np.random.default_rng(0).standard_normal(before.shape)
    engine.core._runner.write(Weights({path: (before * noise).astype(before.dtype)}))


def hot_request(rng: random.Random) -> tuple[str, SamplingParams]:
    """A random request, mostly so hot that noise decides, which a draft knows too: random weights are right now and then."""
    prompt, params = random_request(rng)
    return prompt, replace(params, temperature=2.0) if rng.random() < 0.8 else params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("draft_model", 15),
        *(pytest.param(method, 1000, marks=pytest.mark.rare) for method in DISTURBED),
        *(pytest.param(method, 100, marks=pytest.mark.rare) for method in ("eagle", "dflash", "mtp")),
    ],
)
def test_random_requests_are_answered_as_without_drafts(tmp_path: Path, method: str, count: int) -> None:
    target, drafting = drafted_by(method, tmp_path, num_drafts=NUM_DRAFTS)
    make = random_request if method in DISTURBED else hot_request
    answers = []
    counts = Counts()
    for given in ({}, drafting):
        with any_number_of_drafts(5), quick_programs():
            engine = build_engine(EngineConfig.from_options(**{**OPTIONS, **target, **given}))
            if given:
                engine.core.recorder.listen(counts)
                if method in DISTURBED:
                    disturb_draft(engine)
            answers.append(play(engine, seed=7, count=count, make=make))
            assert engine.compile_counter.count == 0
            preempted = engine.core.scheduler.stats.num_preemptions > 0
            assert preempted or (given and count < 100), (
                "few requests end too soon with drafts to be in each other's way"
            )
            engine.close()
    (expected, lost), (found, also_lost) = answers
    for number in expected.keys() - lost - also_lost:
        assert tokens(found[number]) == tokens(expected[number]), number
    assert len(lost | also_lost) < count // 2
    right, wrong = counts.accepted, counts.proposed - counts.accepted
    assert min(right, wrong) > count, (right, wrong)


class Counts:
    """How many tokens of drafts were checked, and were right."""

    proposed = accepted = 0

    def on_step(self, stats: Any) -> None:
        self.proposed += stats.drafts.num_draft_tokens
        self.accepted += stats.drafts.num_accepted_tokens

    def on_finished(self, *_: Any) -> None:
        """Nothing to count."""

    on_lost = on_finished


def tokens(output: Any) -> list[Any]:
    """What was generated; log probabilities of rows of several tokens may differ in their last bits."""
    return [(each.index, each.text, each.token_ids, each.finish_reason, each.stop_reason) for each in output.outputs]
