"""The recorded fixtures are still what the installed transformers computes, and longer prompts agree too."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.models.cases import CASES, PROMPTS, QUICK, VOCAB, Fixture, log_softmax, random_tensors
from tests.device.models.paged import MIXED, PagedModel
from tests.quick import rare_but

pytestmark = [pytest.mark.torch, pytest.mark.slow]

torch = pytest.importorskip("torch")
MIXERS = ("llama", "gemma3", "gemma4-shared", "gpt-oss", "deepseek-v3", "lfm2", "granite-hybrid", "qwen3-next")
"""A case of each way in which tokens see others, but for ALiBi: transformers rounds Falcon's distances to bfloat16."""
LONGEST = 700
LONG = [[int(token) for token in np.random.default_rng(length).integers(0, VOCAB, length)] for length in (90, 33)]

ELSEWHERE = {"kimi-linear": 1.5e-3}
"""At one token of a prompt hardly anything is left of a state, which a norm makes large again. It is transformers' own rounding:
with its delta rule in float64 the two differ by 1.2e-4 there, and by 5e-5 where ours decodes."""


@pytest.fixture(autouse=True)
def _quiet():
    # transformers warns about its own deprecations; a user without torch never sees this file run.
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("case", rare_but(CASES, QUICK))
def test_transformers_agrees_now(case):
    from tests.device.models.record_fixtures import build, logits

    fixture = Fixture.load(case)
    theirs, config, shapes = build(*CASES[case])
    ignored = {"transformers_version"}
    assert {k: v for k, v in config.items() if k not in ignored} == {
        k: v for k, v in fixture.config.items() if k not in ignored
    }
    assert shapes == fixture.shapes
    for prompt, recorded in zip(PROMPTS, fixture.logits, strict=True):
        np.testing.assert_allclose(logits(theirs, prompt), recorded, atol=1e-5 * fixture.spread, rtol=0)
    ours = PagedModel(config, random_tensors(shapes)).logprobs(LONG, seq=16)
    for prompt, found in zip(LONG, ours, strict=True):
        atol = ELSEWHERE.get(case, 1e-4) * fixture.spread
        np.testing.assert_allclose(found, log_softmax(logits(theirs, prompt)), atol=atol, rtol=0)


@pytest.mark.parametrize("case", rare_but(MIXERS, {"llama", "gemma3", "deepseek-v3", "qwen3-next"}))
def test_prompts_over_many_tiles_and_pages_agree(case):
    """700 tokens in 22 pieces and 88 pages. In a delta rule's state rounding adds up."""
    from tests.device.models.record_fixtures import build, logits

    architecture, options = CASES[case]
    theirs, config, shapes = build(architecture, {**options, "max_position_embeddings": 1024})
    ours = PagedModel(config, random_tensors(shapes), page_size=8, num_pages=128)
    prompt = [int(token) for token in np.random.default_rng(LONGEST).integers(0, VOCAB, LONGEST)]
    [found] = ours.logprobs([prompt], seq=MIXED.tokens)
    np.testing.assert_allclose(found, log_softmax(logits(theirs, prompt)), atol=2e-3, rtol=0)
