"""Videos of families that see them against what transformers computed: frames of one item, and of each its own run of tokens."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.device.models.media.cases import NUM_GREEDY, VIDEO_CASES, Fixture
from tests.device.models.media.seeing import SeeingModel
from tests.device.models.media.test_parity import CHUNK, MAX_ERROR, worst_error

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", VIDEO_CASES)
def test_log_probabilities_and_greedy_tokens_equal_transformers(case: str) -> None:
    """Alone the same bits, too."""
    fixture = Fixture.load(case)
    with jax.numpy_dtype_promotion("strict"):
        model = SeeingModel(fixture)
        found = model.logprobs(fixture.ids, seq=CHUNK, media=model.show(fixture.prompts))
        assert worst_error(found, fixture) < MAX_ERROR
        [alone] = model.logprobs(fixture.ids[:1], seq=CHUNK, media=model.show(fixture.prompts[:1], together=False))
        np.testing.assert_array_equal(alone, found[0])
        media = model.show(fixture.prompts, together=False)
        assert model.greedy(fixture.ids, NUM_GREEDY, seq=CHUNK, media=media) == fixture.greedy
