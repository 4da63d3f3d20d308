"""Families that hear against what transformers computed, through encoder, pool, pages and rows."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.device.models.media import hearing_cases
from tests.device.models.media.cases import NUM_GREEDY
from tests.device.models.media.seeing import SeeingModel
from tests.device.models.media.test_parity import CHUNK, MAX_ERROR, worst_error
from tests.quick import slow_but


@pytest.fixture(autouse=True)
def _strict_promotion():
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(hearing_cases.CASES, ["voxtral"]))
def test_log_probabilities_and_greedy_tokens_equal_transformers(case):
    """Alone the same bits, too: a sound of two spans, one of half a span, two in a prompt, and none."""
    fixture = hearing_cases.load(case)
    model = SeeingModel(fixture)
    found = model.logprobs(fixture.ids, seq=CHUNK, media=model.show(fixture.prompts))
    assert worst_error(found, fixture) < MAX_ERROR
    [alone] = model.logprobs(fixture.ids[:1], seq=CHUNK, media=model.show(fixture.prompts[:1]))
    np.testing.assert_array_equal(alone, found[0])
    media = model.show(fixture.prompts, together=False)
    greedy = model.greedy(fixture.ids, NUM_GREEDY, seq=CHUNK, media=media)
    for ours, theirs in zip(greedy, fixture.greedy, strict=True):
        assert len(theirs) >= 5
        assert ours[: len(theirs)] == theirs
