"""A head that was trained for two steps is a checkpoint that the engine drafts with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.embedded_model.draft import PASSES, TAPS, HeadConfig, init, logits, train
from examples.embedded_model.evaluate import load_checkpoint
from examples.embedded_model.model import norm, streams
from jaxengine import LLM, SamplingParams
from jaxengine.embedded import checkpoint_path


@pytest.mark.slow
def test_at_first_it_says_what_the_model_says_of_the_place_before():
    target, model = load_checkpoint(checkpoint_path())
    tokens = jnp.array(np.random.default_rng(0).integers(0, model.vocab_size, (1, 12)), jnp.int32)
    segments = jnp.zeros_like(tokens)
    params = init(jax.random.key(0), HeadConfig(), target, model)
    said, last = logits(params, target, tokens, segments, HeadConfig(), model)
    assert len(said) == PASSES
    np.testing.assert_allclose(last, streams(target, tokens, segments, model)[TAPS[-1]], rtol=1e-5)
    expected = norm(last, target["norm"], model.norm_eps) @ target["lm_head"].T
    np.testing.assert_allclose(said[0], expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(said[1][:, 1:], expected[:, :-1], rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_what_it_writes_drafts(tmp_path):
    train(tmp_path / "head", source=checkpoint_path(), steps=2, batch=1, length=64)
    prompt, params = "Once upon a time", SamplingParams(temperature=0.0, max_tokens=12)
    asked = {"method": "eagle3", "model": str(tmp_path / "head"), "num_speculative_tokens": 2}
    answers = [
        LLM(max_model_len=64, max_num_seqs=1, warmup="none", **options).generate([prompt], params)[0].outputs[0].text
        for options in ({}, {"speculative_config": asked})
    ]
    assert answers[0] == answers[1]
