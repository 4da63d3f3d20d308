"""Drafts that the device makes change how many tokens a step brings, and never which: whatever is asked, with overlap on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from jaxengine import embedded
from jaxengine.contract.batch import Weights
from jaxengine.host.scheduler.draft_length import DraftLength
from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import Engine, build_engine
from tests.integration.test_overlap import OPTIONS, play
from tests.quick import quick_programs, rare_but

NUM_DRAFTS = 3
SPECULATION = {
    "method": "draft_model",
    "model": str(embedded.checkpoint_path()),
    "num_speculative_tokens": NUM_DRAFTS,
}


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


@pytest.mark.slow
@pytest.mark.parametrize("count", rare_but([100, 1000], {100}))
def test_random_requests_are_answered_as_without_drafts(count: int) -> None:
    answers = []
    counts = Counts()
    for given in ({}, {"speculative_config": SPECULATION}):
        with any_number_of_drafts(5), quick_programs():
            engine = build_engine(EngineConfig.from_options(**OPTIONS, **given))
            if given:
                disturb_draft(engine)
                engine.core.recorder.listen(counts)
            answers.append(play(engine, seed=7, count=count))
            assert engine.compile_counter.count == 0
            assert engine.core.scheduler.stats.num_preemptions > 0
            engine.close()
    assert count < counts.accepted < counts.proposed - count, "some are right and some are wrong"
    (expected, lost), (found, also_lost) = answers
    for number in expected.keys() - lost - also_lost:
        assert tokens(found[number]) == tokens(expected[number]), number
    assert len(lost | also_lost) < count // 2


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
